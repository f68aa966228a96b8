"""Calls of tools and users, and an index to search, for tests of tools."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.rpc.messages.agents import Act, SeenImage, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.tools.pool import ToolPool


def ask(
    pool: ToolPool,
    name: str,
    arguments: str = "{}",
    created: bytes = b"{}",
    to_user: bool = False,
    images: list[SeenImage] | None = None,
) -> ToolAnswer:
    """The answer to one call, or of a user to a turn."""
    call = ToolCall(name, arguments, created, to_user=to_user)
    return pool.start(turn_of(3, [call], images=images)).result().answers[0]


def turn_of(row: int, calls: Sequence[ToolCall], **fields: Any) -> Act:
    """The calls of the first turn of a row of step 1; none end the row."""
    return Act(BatchName(0, 1, "train"), row, 0, list(calls), **fields)


def problems_of(agent: AgentSpec, folder: Path | None = None) -> list[str]:
    """What is said of tools that cannot be used; a folder's name is left out."""
    with pytest.raises(ConfigError) as refused:
        ToolPool(agent)
    return [line.replace(str(folder), "FOLDER") for line in refused.value.problems]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of five towns, made without an encoder."""
    names = ("Ulf", "Ada", "Bo", "Ulf and Bo", "3")
    corpus = tmp_path / "corpus.jsonl"
    lines = [
        {"id": str(n), "contents": f'"{name}"\n{name} lives in town {n}.'}
        for n, name in enumerate(names)
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_index(corpus, tmp_path / "index", encoder=None, on_progress=lambda *_: None)
    return tmp_path / "index"
