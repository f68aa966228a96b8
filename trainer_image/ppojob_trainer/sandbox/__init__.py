"""Sandbox for untrusted programs, such as code of responses."""
