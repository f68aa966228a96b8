"""What ours and TRL's update of `long_tail_rows.py` share; it loads neither torch nor ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEARNING_RATE = 1e-6
"""Small: each repetition is to do the same work on the same weights, nearly."""


def rows_file(folder: Path) -> Path:
    return folder / "rows.jsonl"


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """One dict a row: group, prompt and response token ids, reward."""
    return [json.loads(line) for line in rows_file(folder).read_text().splitlines()]
