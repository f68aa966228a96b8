"""Tiny jobs whose rows are conversations: one that calls a tool by chance, one that searches."""

import json
from collections.abc import Mapping
from pathlib import Path

import tiny_jobs
import tiny_models

TOOLS = '''
import random, time

def add(a: int, b: int) -> tuple[str, float]:
    """Adds two numbers, sometimes slowly."""
    time.sleep(random.uniform(0.0, {seconds}))
    return str(a + b), 0.25

def draw(a: int, b: int) -> str:
    """Never says the same twice."""
    with open({calls!r}, "a") as calls:
        calls.write("x")
    return str(random.randrange(10**6))

class Till:
    """Its answers depend on all calls of its row."""

    def __init__(self):
        self.total = 0

    def add(self, a: int, b: int) -> tuple[str, float]:
        """Adds two numbers to the total, sometimes slowly."""
        self.total += a + b
        return add(self.total, 0)

    def score(self):
        return self.total / 8
'''
REWARD = '''
def talk(data_source, solution_str, ground_truth, extra_info):
    """Turns, calls and what was written: all that a scorer is told of a conversation."""
    assert len(extra_info["tool_rewards"]) == extra_info["tool_calls"]
    digits = sum(character.isdigit() for character in solution_str)
    return {"score": extra_info["num_turns"] + digits / 100, "calls": extra_info["tool_calls"]}
'''
STOPS = [len(tiny_models.NAMES) + number for number in range(len(tiny_models.CALLS))]
_NUMBER = {"type": "integer"}


def make_talking_folder(folder: Path) -> Path:
    """A model that calls a tool by chance, data, and a reward of turns and calls."""
    tiny_jobs.make_tiny_folder(folder, model="talker")
    (folder / "talk.py").write_text(REWARD)
    return folder


def write_tools(folder: Path, seconds: float) -> Path:
    """A tool that takes up to so many seconds, and one that draws."""
    path = folder / "tools.py"
    path.write_text(TOOLS.format(seconds=seconds, calls=str(folder / "calls")))
    return path


def talking(folder: Path, source: Mapping[str, object], **agent: object) -> dict[str, object]:
    """Sections of a job in a `make_talking_folder`, with the tool `add` of `source`."""
    spec = tiny_jobs.make_manifest(folder)["spec"]
    tool = {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}},
        "source": dict(source),
    }
    settings = {"tools": [tool], "toolSteps": 8, "turnTokens": 24, "toolRewards": "add"}
    return {
        "agent": {**settings, **agent},
        "rollout": {**spec["rollout"], "stopTokenIds": STOPS, "maxSequences": 8},
        "data": {**spec["data"], "maxResponseTokens": 96},
        "rewards": [{"function": "talk", "source": {"path": str(folder / "talk.py")}}],
        "steps": {"total": 4, "validateEvery": 4},
        "checkpoint": {"every": 2},
    }


def make_commanding_folder(folder: Path, /, **created: object) -> Path:
    """A model that runs shell commands by chance, and rows whose log of them is tested."""
    tiny_jobs.make_tiny_folder(folder, model="commander")
    test = {"setup": "echo 0 > log", "test": "test $(wc -l < log) -gt 2"}
    for path in (folder / "train.jsonl", folder / "validation.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["extra_info"]["tools_kwargs"] = {"bash": {"create_kwargs": {**test, **created}}}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def commanding(folder: Path, **agent: object) -> dict[str, object]:
    """Sections of a job in a `make_commanding_folder`."""
    spec = tiny_jobs.make_manifest(folder)["spec"]
    return {
        "agent": {"tools": [{"name": "bash"}], "turnTokens": 24, **agent},
        "rollout": {**spec["rollout"], "stopTokenIds": STOPS, "maxSequences": 8},
        "data": {**spec["data"], "maxResponseTokens": 96},
        "rewards": [{"function": "environment_score"}],
        "steps": {"total": 2},
    }


def make_searching_folder(folder: Path) -> Path:
    """A model that searches by chance, a corpus and its index."""
    tiny_jobs.make_tiny_folder(folder, model="searcher")
    lines = [{"id": str(n), "contents": f'"T"\ntown {n}'} for n in range(40)]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tiny_jobs.ppojob(folder, "index", corpus, "--output", folder / "index")
    return folder


def searching(folder: Path, config: Mapping[str, object], **agent: object) -> dict[str, object]:
    """Sections of a job in a `make_searching_folder`, with the tool `search`."""
    spec = tiny_jobs.make_manifest(folder)["spec"]
    search = {"name": "search", "config": {"topk": 1, **config}}
    settings = {"format": "search_r1", "toolSteps": -1, "turnTokens": 24, **agent}
    stops = [tiny_models.NAMES.index(sign) for sign in ".,:;!?"]
    return {
        "agent": {"tools": [search], **settings},
        "rollout": {**spec["rollout"], "stopTokenIds": stops},
        "data": {**spec["data"], "maxResponseTokens": 192},
        "steps": {"total": 2},
    }
