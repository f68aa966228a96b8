"""How models write calls of tools: a file each."""
