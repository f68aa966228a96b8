import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prompt_files import PromptFiles, good_row

from ppojob_api.v1alpha1.data import SamplerSpec
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.row_sampler import RowSampler
from ppojob_trainer.data.score_history import columns
from ppojob_trainer.errors import ConfigError, SamplerFailed

pytestmark = pytest.mark.processes

MINE = """
import json
import os
from pathlib import Path

import numpy as np

CALLS = 0

def by_level(step, seed, count, rows, state):
    assert rows["data_source"] == ["ppojob/addition"] * 2000
    assert rows["level"][1999] is None and rows["draws"].sum() == 0
    rows["draws"] += 1
    rows["level"][0] = 7
    levels = [-1 if level is None else level for level in rows["level"]]
    return np.argsort(levels)[-count:], {"calls": (state or {"calls": 0})["calls"] + 1}

def ends_once(step, seed, count, rows):
    marker = Path(__file__).with_suffix(".once")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return range(count)

def ends(step, seed, count, rows):
    os._exit(5)

def killed(step, seed, count, rows):
    os.kill(os.getpid(), 9)

def holds(step, seed, count, rows, state):
    return range(count), {1.5, 2.5}

def raises(step, seed, count, rows):
    return rows["hardness"]

def writes(step, seed, count, rows, shares):
    tags = rows["tags"][0]
    shares.append(len(tags))
    tags["more"] = len(shares)
    return [shares[-1], tags["more"]]

def lengths(step, seed, count, rows, state):
    return range(count - 1, -1, -1), [len(text or "") for text in rows["text"]]

class Stateful:
    pass

def in_order(step, seed, count, rows):
    assert (np.diff(rows["draws"]) == 1).all()
    return [len(rows["draws"]) - 1]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def spec_of(file: Path, function: str, **settings: object) -> SamplerSpec:
    source = {"path": str(file)}
    return SamplerSpec.model_validate({"source": source, "function": function, **settings})


@pytest.fixture
def dataset(files: PromptFiles) -> Iterator[PromptDataset]:
    rows = [good_row(extra_info={"level": number}) for number in range(1999)]
    with files.open(files.lines("rows.jsonl", *rows, good_row())) as opened:
        yield opened


def test_it_is_told_of_all_rows_and_keeps_nothing_but_its_state(mine: Path, dataset) -> None:
    """There are more rows than one message has."""
    told = columns({}, np.full(len(dataset), 0.5))
    with RowSampler(spec_of(mine, "by_level", columns=["level"]), dataset) as sampler:
        sampler.open()
        first, state = sampler.choose(1, 0, 3, told, "null")
        assert (first, state) == ([1996, 1997, 1998], '{"calls": 1}')
        assert sampler.choose(2, 0, 3, told, state) == (first, '{"calls": 2}')
        assert sampler.choose(1, 0, 3, told, "null") == (first, '{"calls": 1}')


def test_what_a_call_writes_is_no_memory_of_the_next(mine: Path, files: PromptFiles) -> None:
    """Not in what it is told of a row, nor in its arguments, however deep."""
    rows = [good_row(extra_info={"tags": {"easy": 1}})] * 9
    settings = {"columns": ["tags"], "arguments": {"shares": [0.5, 0.5]}}
    with (
        files.open(files.lines("tags.jsonl", *rows)) as dataset,
        RowSampler(spec_of(mine, "writes", **settings), dataset) as sampler,
    ):
        told = columns({}, np.full(len(dataset), 0.5))
        for step in (1, 2):
            assert sampler.choose(step, 0, 2, told, "null") == ([1, 3], "null")


def test_a_killed_process_is_started_again(mine: Path, dataset) -> None:
    told = columns({}, np.full(len(dataset), 0.5))
    with RowSampler(spec_of(mine, "ends_once"), dataset) as sampler:
        assert sampler.choose(1, 0, 2, told, "null") == ([0, 1], "null")
        assert sampler._child is not None
        os.kill(sampler._child.pid, signal.SIGKILL)
        assert sampler.choose(2, 0, 1, told, "null") == ([0], "null")


def test_a_column_that_no_row_has_is_refused(mine: Path, dataset) -> None:
    """`nearest` would take its rows by chance."""
    spec = SamplerSpec(
        function="nearest", columns=("level", "levels"), arguments={"column": "levels"}
    )
    with RowSampler(spec, dataset) as sampler:
        with pytest.raises(ConfigError) as refused:
            sampler.open()
        told = "spec.data.sampler.columns: got levels: no row has it; entries of extra_info that"
        assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("ends", "got no rows: its process"),
        ("killed", "was killed by signal 9"),
        ("holds", "got state: not JSON: Object of type set"),
        ("raises", "got KeyError: 'hardness': it raised at {file}:35 raises; a function that"),
    ],
)
def test_what_a_call_does_wrong_is_told(mine: Path, dataset, function: str, told: str) -> None:
    with RowSampler(spec_of(mine, function), dataset) as sampler:
        with pytest.raises(SamplerFailed) as failed:
            sampler.choose(1, 0, 1, columns({}, np.full(len(dataset), 0.5)), "null")
        assert str(failed.value).startswith("spec.data.sampler: ")
        assert told.format(file=mine) in str(failed.value)


@pytest.mark.parametrize(
    ("text", "function", "told"),
    [
        (MINE, "other", "got other: the file has no such function; it has by_level, ends_once,"),
        (MINE, "CALLS", "got CALLS = int: not callable; a function"),
        (
            MINE,
            "Stateful",
            "got class Stateful: its objects could have state that no checkpoint has",
        ),
        ("def one(step, seed, count): pass", "one", "it cannot be called with step, seed, count,"),
        ("import nowhere", "one", "it imports nowhere, which is not installed"),
        ("def one(:", "one", "not Python"),
    ],
)
def test_a_file_without_such_a_function_is_refused(mine, dataset, text, function, told):
    mine.write_text(text)
    with RowSampler(spec_of(mine, function), dataset) as sampler:
        with pytest.raises(ConfigError) as refused:
            sampler.open()
        assert str(refused.value).startswith("spec.data.sampler: got ")
        assert told in str(refused.value)
