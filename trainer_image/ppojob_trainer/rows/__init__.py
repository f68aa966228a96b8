"""Rows of a step, as flat columns without padding."""
