"""What lies where in a run folder: names that the controller writes and the command line reads."""

from typing import Final

JOB_FILE: Final = "job.yaml"
METRICS_FILE: Final = "metrics.jsonl"
SUMMARY_FILE: Final = "summary.json"
RESPONSES_FILE: Final = "responses.parquet"
CHECKPOINTS_FOLDER: Final = "checkpoints"
EXPORT_FOLDER: Final = "export"
TENSORBOARD_FOLDER: Final = "tensorboard"
LOGS_FOLDER: Final = "logs"
PROFILE_FOLDER: Final = "profile"
WANDB_FOLDER: Final = "wandb"
"""As wandb itself calls it."""
TRACKIO_FOLDER: Final = "trackio"
MLFLOW_FOLDER: Final = "mlflow"
MLFLOW_FILE: Final = "mlflow.db"
"""In that folder."""
