"""The trackers there are: what each needs installed, and what of the environment it sees."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Library:
    """What a tracker's library needs.

    Attributes:
        modules: that it is imported from.
        prefixes: of the environment variables that are its own, keys among them.
    """

    modules: tuple[str, ...]
    prefixes: tuple[str, ...]


LIBRARIES: Final = {
    "wandb": Library(("wandb",), ("WANDB_",)),
    # Without a server it keeps its runs in a file of SQLite, by SQLAlchemy.
    "mlflow": Library(("mlflow", "sqlalchemy", "alembic"), ("MLFLOW_", "DATABRICKS_")),
}
"""By the word of `spec.loggers`."""

_OF_ALL: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
                  "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
                  "CURL_CA_BUNDLE")  # fmt: skip


def missing_modules() -> dict[str, str]:
    """By tracker the first module that is not installed; trackers that have all are left out."""
    missing: dict[str, str] = {}
    for tracker, library in LIBRARIES.items():
        for module in library.modules:
            if not _is_there(module):
                missing.setdefault(tracker, module)
    return missing


def variables(tracker: str) -> tuple[str, ...]:
    """Names of the environment variables that its process may see besides the few of all."""
    prefixes = LIBRARIES[tracker].prefixes
    return (*_OF_ALL, *(name for name in os.environ if name.startswith(prefixes)))


def _is_there(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    # A folder `wandb`, which its runs leave behind, would be taken for a package without a file.
    return spec is not None and spec.origin is not None
