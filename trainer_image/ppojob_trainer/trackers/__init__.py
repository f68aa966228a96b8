"""Experiment trackers (wandb, mlflow): views of metrics.jsonl by processes of their own."""
