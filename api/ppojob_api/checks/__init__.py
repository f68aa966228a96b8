"""Checks across fields, one small function a rule, by subject."""
