"""Builders of a job's Kubernetes objects: pure functions of its run configuration."""
