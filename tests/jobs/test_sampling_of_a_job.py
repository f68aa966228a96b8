import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
from made_once import made_once
from refused_jobs import edit
from tiny_models import NAMES


def test_a_penalty_and_min_p_reach_training_and_validation(alone: Callable[..., Path]) -> None:
    """With so large a penalty no token comes again; with such a min-p hardly a choice is left."""
    one_of_a_kind = {"repetitionPenalty": 100}
    rollout = {
        **{"engine": "huggingface", "dtype": "float32", "validation": one_of_a_kind},
        **{"minP": 0.9999, **one_of_a_kind},
    }
    steps = {"total": 1, "validateEvery": 1}
    run = alone(rollout=rollout, steps=steps)
    for batch in ("rollouts/step-000001.parquet", "validation/step-000000.parquet"):
        rows = pq.read_table(run / batch).to_pylist()
        assert rows
        for row in rows:
            assert len(set(row["response_ids"])) == len(row["response_ids"]) > 1
            assert set(row["rollout_logprobs"]) == {0.0} or "validation" in batch


def test_stop_strings_end_responses(alone: Callable[..., Path]) -> None:
    """In training and validation; the last of them is of two tokens."""
    ends = [*"aeiou", "nn"]
    rollout = {"engine": "huggingface", "dtype": "float32", "stopStrings": ends}
    sampled = {**rollout, "validation": {"temperature": 1.0}}
    run = alone(rollout=sampled, steps={"total": 1, "validateEvery": 1})
    stopped = 0
    for batch in ("rollouts/step-000001.parquet", "validation/step-000000.parquet"):
        for row in pq.read_table(run / batch).to_pylist():
            *before, last = (NAMES[n] for n in row["response_ids"])
            assert not any(end in "".join(before) for end in ends)
            stopped += any(map("".join([*before, last]).endswith, ends))
    assert stopped > 5


FORM = "[a-z]{1,5}([.!] ?)?"
END = NAMES.index("<|im_end|>")


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny files, with a tokenizer that says which bytes its tokens have."""

    def make(made: Path) -> None:
        shutil.copytree(tiny_folder, made / "tiny")
        edit(made / "tiny" / "model" / "tokenizer.json", tiny_jobs.WITH_BYTES)

    return made_once(tmp_path_factory, "with bytes", make) / "tiny"


VLLM = pytest.param(
    {"engine": "vllm", "kvCacheGib": 0.1},
    id="vllm",  # whose rows have their form in integration/test_vllm_drafts.py
    marks=[pytest.mark.vllm, pytest.mark.long],
)
HUGGINGFACE = {"engine": "huggingface"}


@pytest.mark.parametrize("engine", [VLLM, pytest.param(HUGGINGFACE, id="huggingface")])
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


COUNTS = """
import json, os, urllib.request

FORM = {"name": "n", "schema": {"type": "integer", "minimum": 0, "maximum": 999}}

def ask(messages, **form):
    body = json.dumps({"model": "policy", "messages": messages, **form}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(address, body) as answer:
        return json.load(answer)["choices"][0]["message"]

def counts(messages):
    form, found = {"response_format": {"type": "json_schema", "json_schema": FORM}}, 0
    for asked in (form, {}, form):
        said = ask(messages, **asked)
        messages = [*messages, said, {"role": "user", "content": "so"}]
        found += json.loads(said["content"]) if asked else 0
    return found / 1000
"""


@pytest.mark.long
@pytest.mark.parametrize("engine", [VLLM, pytest.param(HUGGINGFACE, id="huggingface")])
def test_turns_have_the_form_that_a_program_wants(engine, folder, run_twice, tmp_path):
    """A turn that goes on with newer weights goes on in its form; others are free."""
    (tmp_path / "counts.py").write_text(COUNTS)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    told = {"interaction_kwargs": {"name": "counts"}}
    lines = [json.dumps({**row, "extra_info": {**row["extra_info"], **told}}) for row in rows]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    source = {"path": str(tmp_path / "counts.py")}
    user = {"name": "counts", "interface": "openai", "source": source}
    files = {"train": [{"path": str(tmp_path / "train.jsonl")}], "validation": []}
    manifest = tiny_jobs.write_manifest(
        tmp_path,
        folder,
        data={**files, "maxPromptTokens": 40, "maxResponseTokens": 80},
        rollout={"dtype": "float32", "maxStaleness": 2, **engine},
        agent={"interactions": [user], "turnTokens": 12, "toolSteps": 2, "toolRewards": "add"},
        steps={"total": 4},
    )
    run = run_twice(manifest, "rpc.act.answer.before@7=kill", "controller.step.recorded@3=kill")
    assert any(line.get("async/partial_rows", 0) > 0 for line in run_folders.metrics(run))
    turns: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for row in (row for file in run.glob("rollouts/*") for row in pq.read_table(file).to_pylist()):
        ids, number, said = iter(row["response_ids"]), 0, ""
        for segment in row["segments"]:
            text = "".join(NAMES[token] for token in itertools.islice(ids, segment["tokens"]))
            if segment["version"] is None:
                turns[number].append(said)
                number, said = number + 1, ""
            else:
                said += text
        turns[number].append(said)
    assert len(turns[2]) >= 4 * 16
    assert all(re.fullmatch(r"(0|[1-9]\d{0,2})<\|im_end\|>", one) for one in turns[0] + turns[2])
    assert not all(one[0].isdigit() for one in turns[1])


ROLLOUT = {
    **{"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16},
    # So cold that rows repeat themselves, and with all that may lie between logits and a draw.
    **{"temperature": 0.2, "topP": 0.95, "topK": 40, "repetitionPenalty": 0.9},
}
DRAFTS = {**ROLLOUT, "drafts": {"tokens": 3, "shortestMatch": 1, "maxRows": 16}}


@pytest.mark.vllm
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
