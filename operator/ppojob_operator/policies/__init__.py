"""Lifecycle policies: pure functions of the job, the observed state, and the time."""
