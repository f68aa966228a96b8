"""The commands that look at a job on a cluster, and change it: `kubectl ppojob ...`."""
