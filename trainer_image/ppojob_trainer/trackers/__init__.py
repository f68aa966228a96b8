"""Experiment trackers: views of metrics.jsonl by processes of their own."""
