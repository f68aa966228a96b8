"""Kubernetes operator for PPOJobs: reconciles jobs; its decisions are pure functions."""
