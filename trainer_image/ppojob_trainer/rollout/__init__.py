"""Rollout engines: one protocol, its implementations, and the seeds of reproducible sampling."""
