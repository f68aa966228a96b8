"""Containers of rows: in each run the shell commands of one row of an agent."""
