"""Table of trackers: required packages, and environment variables that they see."""

import importlib.util
import os
from typing import Final

LIBRARIES: Final = {
    "wandb": ("wandb",),
    # Without a server it keeps its runs in a file of SQLite, by SQLAlchemy.
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "swanlab": ("swanlab",),
    "trackio": ("trackio",),
}
"""The modules that must be installed, by the word of `spec.loggers`."""

_PREFIXES: Final = {
    "wandb": ("WANDB_",),
    "mlflow": ("MLFLOW_", "DATABRICKS_"),
    "swanlab": ("SWANLAB_",),
    "trackio": ("TRACKIO_", "HF_"),
}
"""Of the environment variables that are a tracker's own, keys among them."""
_OF_ALL: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
                  "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
                  "CURL_CA_BUNDLE")  # fmt: skip


def missing_modules() -> dict[str, str]:
    """The first module that is not installed, by tracker; trackers that have all are left out."""
    found = {
        tracker: [module for module in modules if not _is_there(module)]
        for tracker, modules in LIBRARIES.items()
    }
    return {tracker: missing[0] for tracker, missing in found.items() if missing}


def variables(tracker: str) -> tuple[str, ...]:
    """Names of the environment variables that its process may see besides the few of all."""
    return (*_OF_ALL, *(name for name in os.environ if name.startswith(_PREFIXES[tracker])))


def _is_there(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    # A folder `wandb`, which its runs leave behind, would be taken for a package without a file.
    return spec is not None and spec.origin is not None
