import json
from pathlib import Path
from typing import Any

import kill_server
import pytest
from failing import failing_at
from store_runs import content, job_of, store_of, train

from ppojob_api.run_config import RunConfig
from ppojob_trainer import failpoints
from ppojob_trainer.checkpoint import branches, manifest
from ppojob_trainer.checkpoint.manifest import UNREAD
from ppojob_trainer.errors import ConfigError, InjectedFault

POINTS = [point for point in failpoints.all_points() if point.startswith("branched")]
ALGORITHM = {"type": "grpo", "promptsPerStep": 1, "samplesPerPrompt": 2}
OTHER_DATA = {"train": [{"path": "b.jsonl"}]}
FLOWRL = {
    **ALGORITHM,
    "policyLoss": {"type": "flowrl"},
    "lossAggregation": "sequence_mean_token_mean",
}


def branch(tmp_path: Path, run: str = "runs/sum", step: int | None = None, **spec) -> RunConfig:
    place = {"run": str(tmp_path / run)} | ({} if step is None else {"step": step})
    return job_of(tmp_path, checkpoint={"branch": place}, **spec)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("source", ["runs/sum", "bucket/sum"])
def test_a_branch_that_was_broken_off_begins_as_another(source: str, point: str, tmp_path: Path):
    train(tmp_path / "runs" / "sum", job_of(tmp_path), 1, 2)
    config = branch(tmp_path, source, optimizer={"learningRate": 1e-3})
    calm, broken = tmp_path / "calm", tmp_path / "broken"
    branches.begin(config, calm)
    with failing_at(point), pytest.raises(InjectedFault):
        branches.begin(config, broken)
    branches.begin(config, broken)
    assert content(broken) | {"began": b""} == content(calm) | {"began": b""}
    found = store_of(broken, config).recover().checkpoint
    assert found is not None
    assert found.step == 2
    assert len((broken / "metrics.jsonl").read_text().splitlines()) == 3


def test_it_begins_once(tmp_path: Path) -> None:
    train(tmp_path / "runs" / "sum", job_of(tmp_path), 1, 2)
    told: list[str] = []
    config = branch(tmp_path, step=1, optimizer={"learningRate": 1e-3})
    for _ in range(2):
        branches.begin(config, tmp_path / "run", told.append)
    assert store_of(tmp_path / "run", config).steps() == (1,)
    assert told == [
        "spec.optimizer.learningRate: 1e-06 -> 0.001",
        f"{tmp_path}/runs/sum: the run starts from the checkpoint of step 1",
    ]
    assert branches.problems(branch(tmp_path, "gone"), tmp_path / "run") == []


SAMPLER = {"train": [{"path": "a.jsonl"}], "sampler": {"function": "uncertain"}}


@pytest.mark.parametrize(
    "spec", [{"seed": 7}, {"data": OTHER_DATA}, {"rewards": []}, {"data": SAMPLER}], ids=str
)
def test_data_in_another_order_begin_anew(spec: dict[str, Any], tmp_path: Path) -> None:
    """The seed of the data is that of the job where nobody writes it."""
    train(tmp_path / "runs" / "sum", job_of(tmp_path), 1)
    told: list[str] = []
    branches.begin(branch(tmp_path, **spec), tmp_path / "run", told.append)
    progress = manifest.read(tmp_path / "run" / "checkpoints" / "step-000001").progress
    has_other_order = "rewards" not in spec and spec.get("data") != SAMPLER
    assert (progress.data == manifest.UNREAD) == has_other_order
    assert any(line.endswith("the data starts again") for line in told) == has_other_order


TOOL = {"name": "search", "description": "Searches.", "config": {"index": "passages"}}
CHANGES = {
    "rollouts": ({}, {"data": {"maxResponseTokens": 9}}, False),
    "guidance": (
        {"algorithm": {"guidance": {}}, "data": {"guidanceKey": "target"}},
        {"data": {"maxResponseTokens": 9}},
        True,
    ),
    "answers": (
        {"algorithm": {"type": "sft", "samplesPerPrompt": 1}, "rewards": []},
        {"data": {"maxResponseTokens": 9}},
        True,
    ),
    "teacher prompts": (
        {"algorithm": {"type": "distillation", "distillation": {"reprompt": {}}}},
        {"data": {"maxResponseTokens": 9}},
        True,
    ),
    "tools": (
        {"agent": {"tools": [TOOL]}},
        {"agent": {"tools": [TOOL | {"description": "Finds."}]}},
        True,
    ),
    "tools of an agent": (
        {"agent": {"tools": [TOOL], "agents": [{"name": "a", "tools": ["search"]}]}},
        {"agent": {"agents": [{"name": "a", "tools": []}]}},
        True,
    ),
    "limits of an agent": (
        {"agent": {"tools": [TOOL], "agents": [{"name": "a", "tools": ["search"]}]}},
        {"agent": {"agents": [{"name": "a", "tools": ["search"], "maxAssistantTurns": 2}]}},
        False,
    ),
    "the agent of rows": (
        {"agent": {"tools": [TOOL]}},
        {"agent": {"default": "single_turn_agent"}},
        True,
    ),
    "their limits": (
        {"agent": {"tools": [TOOL]}},
        {"agent": {"tools": [TOOL | {"timeLimitSeconds": 9}]}},
        False,
    ),
}


@pytest.mark.parametrize(("run", "change", "is_anew"), CHANGES.values(), ids=CHANGES)
def test_prompts_and_answers_that_become_others_begin_anew(run, change, is_anew, tmp_path: Path):
    """By what the digest of the data consists of: a run refuses to go on with another one."""

    def settings(*parts: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"algorithm": ALGORITHM, "data": {"train": [{"path": "a.jsonl"}]}}
        for name, own in (item for part in parts for item in part.items()):
            found[name] = found.get(name, {}) | own if isinstance(own, dict) else own
        return found

    train(tmp_path / "runs" / "sum", job_of(tmp_path, **settings(run)), 1)
    branches.begin(branch(tmp_path, **settings(run, change)), tmp_path / "run")
    progress = manifest.read(tmp_path / "run" / "checkpoints" / "step-000001").progress
    assert (progress.data == manifest.UNREAD) == is_anew


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        ("spec.model.path", {"model": {"path": "other"}}),
        ("spec.optimizer.amsgrad", {"optimizer": {"amsgrad": True}}),
        ("spec.steps.total", {"steps": {"total": 1}}),
        ("spec.steps.epochs", {"data": OTHER_DATA, "steps": {"epochs": 2}}),
        ("spec.model.mtp", {"model": {"path": "model", "mtp": {}}}),
        ("spec.optimizer.type", {"optimizer": {"type": "sgd"}}),
        ("spec.algorithm.type", {"algorithm": {**ALGORITHM, "type": "ppo"}}),
        ("spec.algorithm.policyLoss.type", {"algorithm": FLOWRL}),
        ("spec.rollout.maxStaleness", {"rollout": {"maxStaleness": 1}}),
    ],
)
def test_what_shapes_a_checkpoint_is_the_same(where: str, spec, tmp_path: Path) -> None:
    train(tmp_path / "runs" / "sum", job_of(tmp_path), 1)
    told = branches.problems(branch(tmp_path, **spec))
    assert [line for line in told if line.startswith(f"{where}: got ")], told
    assert not branches.problems(branch(tmp_path, algorithm={**ALGORITHM, "type": "rloo"}))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"promptsPerRound": 2}, "spec.algorithm.dynamicSampling.promptsPerRound"),
        (None, "spec.algorithm.dynamicSampling"),
        ({"metric": "acc", "maxRounds": 3, "meanBelow": 0.9}, None),
    ],
    ids=str,
)
def test_rounds_that_are_under_way_are_of_as_many_prompts(changes, where, tmp_path):
    """So that a place is never in the middle of one, and its number says which rows it has."""
    rounds, ahead = {"promptsPerRound": 1}, {"rollout": {"maxStaleness": 2}}
    before = {**ALGORITHM, "dynamicSampling": rounds}
    train(tmp_path / "runs" / "sum", job_of(tmp_path, algorithm=before, **ahead), 1)
    after = None if changes is None else rounds | changes
    config = branch(tmp_path, algorithm={**ALGORITHM, "dynamicSampling": after}, **ahead)
    told = branches.problems(config)
    assert [line.partition(": got ")[0] for line in told] == ([where] if where else [])


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("spec.algorithm.routerReplay", {"routerReplay": "rollout"}),
        ("spec.algorithm.type", {"type": "remax"}),
        (None, {"type": "rloo"}),
    ],
)
def test_rows_that_are_ahead_have_what_the_job_reads_of_rows(where, change, tmp_path: Path) -> None:
    """No engine has recorded their experts, or generated greedy responses beside them."""
    for staleness in (0, 1):
        ahead, run = {"rollout": {"maxStaleness": staleness}}, f"runs/{staleness}"
        train(tmp_path / run, job_of(tmp_path, algorithm=ALGORITHM, **ahead), 1)
        told = branches.problems(branch(tmp_path, run, algorithm=ALGORITHM | change, **ahead))
        is_refused = staleness and where
        assert [line.partition(": got ")[0] for line in told] == ([where] if is_refused else [])


def test_passes_that_are_over_leave_nothing_to_do(tmp_path: Path) -> None:
    """Whether the pass under way is over is known where the rows were counted."""
    train(tmp_path / "runs" / "sum", job_of(tmp_path), 1)
    path = tmp_path / "runs" / "sum" / "checkpoints" / "step-000001"
    data = manifest.read(path).progress.data
    one, more = (branch(tmp_path, steps={"epochs": data.epoch + count}) for count in (1, 2))
    assert not branches.problems(one)
    assert not branches.problems(one, rows=data.cursor + 1)
    (line,) = branches.problems(one, rows=data.cursor)
    assert line.startswith("spec.steps.epochs: got ")
    assert not branches.problems(more, rows=data.cursor)


BY_BATCHES = {"train": [{"path": name, "weight": 1} for name in ("a.jsonl", "b.jsonl")]}


@pytest.mark.parametrize(
    ("data", "algorithm", "is_anew"),
    [
        (BY_BATCHES, {"promptsPerStep": 1}, False),
        (BY_BATCHES, {"promptsPerStep": 2}, True),
        (BY_BATCHES, {"dynamicSampling": {"promptsPerRound": 2}}, True),
        (BY_BATCHES, {"supervised": {"coefficient": 0.1, "rowsPerStep": 4}}, False),
        ({**OTHER_DATA, "curriculum": {"key": "hard"}}, {"promptsPerStep": 2}, True),
        (OTHER_DATA, {"promptsPerStep": 2}, False),
    ],
)
def test_what_is_read_by_whole_batches_begins_anew_with_others(data, algorithm, is_anew, tmp_path):
    """A place may lie in the middle of one: of files with weights, of an order by difficulty."""
    shown = {"demonstrations": [{"path": "c.jsonl"}]} if "supervised" in algorithm else {}
    two = {"coefficient": 0.1, "rowsPerStep": 2}
    before = {**ALGORITHM, "supervised": two} if shown else ALGORITHM
    train(tmp_path / "runs" / "sum", job_of(tmp_path, data=data | shown, algorithm=before), 1)
    config = branch(tmp_path, data=data | shown, algorithm={**before, **algorithm})
    told: list[str] = []
    branches.begin(config, tmp_path / "run", told.append)
    found = store_of(tmp_path / "run", config).recover().checkpoint
    assert found is not None
    assert (found.manifest.progress.data == UNREAD) == is_anew
    assert any(line.endswith("the data starts again") for line in told) == is_anew


def test_how_a_layer_is_trained_may_change(tmp_path: Path) -> None:
    before, after = ({"path": "model", "mtp": {"lossCoefficient": c}} for c in (0.1, 0.3))
    train(tmp_path / "runs" / "sum", job_of(tmp_path, model=before), 1)
    assert branches.problems(branch(tmp_path, model=after)) == []


def test_a_damaged_file_is_told_with_its_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "sum"
    train(run, job_of(tmp_path), 1)
    file = next((run / "checkpoints" / "step-000001").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"got {run}: step-000001/.*{file.name}: "):
        branches.begin(branch(tmp_path), tmp_path / "run")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "sum"
    train(run, job_of(tmp_path), 1, 2)
    (line,) = branches.problems(branch(tmp_path, step=7))
    assert line == "spec.checkpoint.branch.step: got 7: there is no such checkpoint; 1, 2"
    whys = {"runs": "it holds no checkpoint", "runs/none": "there is no such folder"}
    for place, why in {**whys, "runs/sum/metrics.jsonl": "it holds no checkpoint"}.items():
        (line,) = branches.problems(branch(tmp_path, place))
        assert f"{why}; the run folder of a job" in line
    (line,) = branches.problems(branch(tmp_path, "runs/sum/checkpoints/step-000002"))
    assert line.endswith(f"it holds no checkpoint; run: {run}, step: 2")
    file = run / "checkpoints" / "step-000002" / "manifest.json"
    file.write_text(json.dumps({}))
    (line,) = branches.problems(branch(tmp_path))
    assert "step-000002/manifest.json" in line


@pytest.mark.parametrize(
    ("changed", "prompts", "is_kept"),
    [
        ({"train": [{"path": "b.jsonl"}], "answerKey": "answer"}, 1, True),
        ({"demonstrations": [{"path": "c.jsonl"}]}, 1, False),
        ({"seed": 3}, 1, False),
        ({}, 2, False),  # as many are read in a step, and files with weights by whole steps
        ({"agent": {"tools": [TOOL]}}, 1, False),  # chat templates show the tools
    ],
)
def test_the_place_in_the_demonstrations_is_kept_while_they_are_the_same(
    changed: dict[str, object], prompts: int, is_kept: bool, tmp_path: Path
) -> None:
    shown = [{"path": "d.jsonl", "weight": 1}]
    data = {"train": [{"path": "a.jsonl"}], "demonstrations": shown}
    settings = {"algorithm": {**ALGORITHM, "supervised": {"coefficient": 0.1}}}
    train(tmp_path / "runs" / "sum", job_of(tmp_path, data=data, **settings), 1)
    supervised = {"supervised": {"coefficient": 0.2}}
    other = {"algorithm": {**ALGORITHM, "promptsPerStep": prompts, **supervised}}
    if "agent" in changed:
        other["agent"], changed = changed["agent"], {}
    config = branch(tmp_path, data={**data, **changed}, **other)
    branches.begin(config, tmp_path / "run")
    found = store_of(tmp_path / "run", config).recover().checkpoint
    assert found is not None
    assert found.manifest.progress.demonstrations == (kill_server.PLACE if is_kept else None)
