"""Scores of responses: built-in scorers, users' functions, and the processes they run in."""
