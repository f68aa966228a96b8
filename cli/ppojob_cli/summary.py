"""Whether a run folder holds a run that is over."""

import json
from pathlib import Path
from typing import Any

from ppojob_api.run_config import RunConfig

SUMMARY_FILE = "summary.json"


def finished_summary(folder: Path, config: RunConfig) -> dict[str, Any] | None:
    """The summary of a run of this very configuration that succeeded; else None."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY_FILE).read_text())
    except (OSError, ValueError):
        return None
    is_same = summary.get("config_sha256") == config.digest()
    return summary if is_same and summary.get("phase") == "Succeeded" else None
