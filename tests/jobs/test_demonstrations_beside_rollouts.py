import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_folders
import tiny_jobs

STEPS = 4
PPO = tiny_jobs.PPO["algorithm"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "demonstrations.jsonl"
    talks = (
        [{"role": "user", "content": f"{n}+1"}, {"role": "assistant", "content": f"= {n + 1}"}]
        for n in range(13)
    )
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return file


def sections_of(
    rows: Path, tiny_folder: Path, supervised: dict[str, Any] | None = None, **changes: object
) -> dict[str, Any]:
    """Sections of a PPO job, whose critic learns alone at first, with four updates a step."""
    data = tiny_jobs.make_manifest(tiny_folder)["spec"]["data"]  # type: ignore[index]
    given = {"demonstrations": [{"path": str(rows)}], "demonstrationPromptKey": "messages"}
    return {
        **tiny_jobs.PPO,
        "data": {**data, **given},
        "algorithm": {**PPO, "supervised": supervised or {"coefficient": 0.5, "rowsPerStep": 6}},
        "steps": {"total": STEPS},
        **changes,
    }


@pytest.fixture(scope="module")
def whole(rows: Path, even_folder: Path, alone: Callable[..., Path]) -> Path:
    return alone(even_folder, **sections_of(rows, even_folder))


@pytest.mark.long
def test_the_answers_are_learnt_once_the_policy_is(whole: Path) -> None:
    records = run_folders.metrics(whole)
    assert run_folders.unnamed(records) == set()
    trained = [record for record in records if "actor/pg_loss" in record]
    assert len(trained) == STEPS - 1, "at first the critic learns alone"
    assert trained[-1]["actor/sft_loss"] < trained[0]["actor/sft_loss"]
    for record in trained:
        terms = record["actor/pg_loss"] + 0.5 * record["actor/sft_loss"]
        assert record["actor/loss"] == pytest.approx(terms, rel=1e-5)
    manifest = json.loads((whole / "checkpoints" / "latest" / "manifest.json").read_text())
    # Two passes of 12 rows in three steps of 6, the 13th is left out.
    place = manifest["manifest"]["progress"]["demonstrations"]
    assert (place["epoch"], place["cursor"]) == (1, 6)


def test_a_killed_job_ends_as_an_undisturbed_one(
    whole, run_through, rows, even_folder, tmp_path, output
):
    points = (
        "rpc.supervise.answer.before@1=kill",
        "rpc.supervise.answer.after@2=kill",
        "controller.step.computed@3=kill",
    )
    sections = sections_of(rows, even_folder)
    run_through(tiny_jobs.write_manifest(tmp_path, even_folder, **sections), output, *points)
    assert run_folders.without_clock(output) == run_folders.without_clock(whole)
    weights = "export/model.safetensors"
    assert (output / weights).read_bytes() == (whole / weights).read_bytes()


@pytest.mark.long
def test_three_ranks_change_only_rounding(whole: Path, finished, rows: Path, even_folder: Path):
    """An update has one row or two, so that one rank at least has none."""
    small = {"training": {"autocast": "none", "microBatchTokens": 60}}
    three = {"roles": {"actorRollout": {"ranksPerReplica": 3}}}
    other = finished("three", **sections_of(rows, even_folder, **three, **small))
    run_folders.assert_close(other, whole)


@pytest.mark.long
def test_a_coefficient_that_falls_is_that_of_its_step_whatever_is_killed(
    run_twice, start, tiny_job, rows, tiny_folder, tmp_path
):
    """CHORD: from one half to nothing over two steps of the policy; then no rows are drawn."""
    falling = {"schedule": "linear", "decaySteps": 2, "interpolate": True, "uncertainTokens": True}
    chord = {"coefficient": 0.5, "rowsPerStep": 6, **falling}
    points = ("rpc.supervise.answer.after@2=kill", "controller.step.computed@3=kill")
    sections = sections_of(rows, tiny_folder, chord, checkpoint={"every": 2})
    calm = run_twice(tiny_job(**sections), *points)
    records = run_folders.metrics(calm)
    assert run_folders.unnamed(records) == set()
    trained = [record for record in records if "actor/pg_loss" in record]
    assert [record["actor/sft_coeff"] for record in trained] == [0.5, 0.25, 0.0]
    assert "actor/sft_loss" not in trained[-1]
    for record in trained:
        c = record["actor/sft_coeff"]
        terms = (1 - c) * record["actor/pg_loss"] + c * record.get("actor/sft_loss", 0.0)
        assert record["actor/loss"] == pytest.approx(terms, rel=1e-5)
    # The branch goes on where its checkpoint was, at half of the schedule.
    origin = {"every": 2, "branch": {"run": str(calm), "step": 2}}
    sections["checkpoint"] = origin
    manifest = tiny_jobs.write_manifest(tmp_path / "b", tiny_folder, **sections)
    branch = start(manifest, tmp_path / "branch").succeed().output
    weights = "export/model.safetensors"
    assert (branch / weights).read_bytes() == (calm / weights).read_bytes()
    assert run_folders.metrics(branch)[-1]["actor/sft_coeff"] == 0.0
