"""`ppojob`: the command line, and the runner of a job on one machine."""
