"""Responses of a form: in training and validation, in parts by newer weights, through kills."""

import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
from made_once import made_once
from refused_jobs import edit
from tiny_models import NAMES

FORM = "[a-z]{1,5}([.!] ?)?"
END = NAMES.index("<|im_end|>")


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny files, with a tokenizer that says which bytes its tokens have."""

    def make(made: Path) -> None:
        shutil.copytree(tiny_folder, made / "tiny")
        edit(made / "tiny" / "model" / "tokenizer.json", tiny_jobs.WITH_BYTES)

    return made_once(tmp_path_factory, "with bytes", make) / "tiny"


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            {"engine": "vllm", "kvCacheGib": 0.1},
            id="vllm",  # whose rows have their form in integration/test_vllm_drafts.py
            marks=[pytest.mark.vllm, pytest.mark.long],
        ),
        pytest.param({"engine": "huggingface"}, id="huggingface"),
    ],
)
def test_every_response_has_the_form_whatever_is_killed(engine, folder, run_twice, tmp_path):
    rollout = {"dtype": "float32", "maxStaleness": 2, "structuredOutput": {"regex": FORM}}
    steps = {"total": 5, "validateEvery": 2}
    job = tiny_jobs.write_manifest(tmp_path, folder, rollout={**rollout, **engine}, steps=steps)
    run = run_twice(job, "rpc.generate.answer.before@4=kill", "controller.step.recorded@3=kill")
    assert any(line.get("async/partial_rows", 0) > 0 for line in run_folders.metrics(run))
    files = [*run.glob("rollouts/*.parquet"), *run.glob("validation/*.parquet")]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) >= 5 * 16 + 3 * 8
    for row in rows:
        *said, last = row["response_ids"]
        assert last == END
        assert re.fullmatch(FORM, "".join(NAMES[token] for token in said))
    assert len({tuple(row["response_ids"]) for row in rows}) > 20
