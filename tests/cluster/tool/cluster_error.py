"""What a person must put right."""


class ClusterError(Exception):
    """One line: what is wrong with this machine or this input, and what to do about it."""
