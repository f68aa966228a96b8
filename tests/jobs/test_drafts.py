"""A job whose engines draft leaves what one without drafts does, bit for bit, through kills too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders

pytestmark = pytest.mark.vllm

ROLLOUT = {
    **{"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16},
    # So cold that rows repeat themselves, and with all that may lie between logits and a draw.
    **{"temperature": 0.2, "topP": 0.95, "topK": 40, "repetitionPenalty": 0.9},
}
DRAFTS = {**ROLLOUT, "drafts": {"tokens": 3, "shortestMatch": 1, "maxRows": 16}}


@pytest.mark.parametrize(
    "apart",
    [
        pytest.param(False, id="beside"),
        pytest.param(True, id="one step off", marks=pytest.mark.long),
    ],
)
def test_rows_metrics_and_weights_are_those_without_drafts(
    apart: bool, alone: Callable[..., Path], run_through, tiny_folder: Path, tiny_job, output
) -> None:
    """Kills come before an engine has answered, and behind a step that the checkpoint lacks."""
    changes = {"data": _data(tiny_folder), "steps": {"total": 4, "validateEvery": 2}}
    changes |= {"roles": {"rollout": {}}} if apart else {}
    staleness = {"maxStaleness": 1} if apart else {}
    plain = alone(**changes, rollout={**ROLLOUT, **staleness})
    points = ("rpc.generate.answer.before@3=kill", "controller.step.recorded@3=kill_group")
    run_through(tiny_job(**changes, rollout={**DRAFTS, **staleness}), output, *points)
    assert run_folders.result(output) == run_folders.result(plain)
    lengths = _accept_lengths(output)
    assert len(lengths) >= 2
    assert min(lengths) > 1.1
    assert not _accept_lengths(plain)


def _data(folder: Path) -> dict[str, object]:
    return {
        "train": [{"path": str(folder / "train.jsonl")}],
        "validation": [{"path": str(folder / "validation.jsonl")}],
        **{"maxPromptTokens": 64, "maxResponseTokens": 24},
    }


def _accept_lengths(output: Path) -> list[float]:
    """Of the steps that drew rows: those that come from the disk again tell none."""
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    name = "perf/draft_accept_length"
    return [line[name] for line in lines if name in line]
