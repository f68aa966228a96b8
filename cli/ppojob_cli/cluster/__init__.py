"""Commands for a job on a cluster: `kubectl ppojob ...`."""
