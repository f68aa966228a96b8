"""Table of trackers: required packages, and environment variables that they see."""

import importlib.util
import os
from typing import Final

LIBRARIES: Final = {
    "wandb": ("wandb",),
    # Without a server it stores runs in SQLite, by SQLAlchemy.
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "swanlab": ("swanlab",),
    "trackio": ("trackio",),
    "clearml": ("clearml",),
}
"""Required modules, by name in `spec.loggers`."""

_PREFIXES: Final = {
    "wandb": ("WANDB_",),
    "mlflow": ("MLFLOW_", "DATABRICKS_"),
    "swanlab": ("SWANLAB_",),
    "trackio": ("TRACKIO_", "HF_"),
    "clearml": ("CLEARML_",),
}
"""Prefixes of a tracker's own environment variables, keys included."""
_OF_ALL: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
                  "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
                  "CURL_CA_BUNDLE")  # fmt: skip


def missing_modules() -> dict[str, str]:
    """Return the first module that is not installed, by tracker; complete trackers are omitted."""
    found = {
        tracker: next((module for module in modules if not _is_installed(module)), "")
        for tracker, modules in LIBRARIES.items()
    }
    return {tracker: missing for tracker, missing in found.items() if missing}


def variables(tracker: str) -> tuple[str, ...]:
    """Return names of the environment variables for a tracker's process."""
    return (*_OF_ALL, *(name for name in os.environ if name.startswith(_PREFIXES[tracker])))


def _is_installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    # A folder `wandb` of its runs is found as a package without a file.
    return spec is not None and spec.origin is not None
