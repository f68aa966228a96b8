"""Tool-call formats of model families, one file each."""
