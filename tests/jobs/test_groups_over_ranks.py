from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

pytestmark = pytest.mark.timeout(1_800)

ROLES = {
    "actorRollout": {"ranksPerReplica": 4},
    "critic": {"colocateWith": "none", "ranksPerReplica": 4, "parallelism": {"sequence": 2}},
    "reference": {"colocateWith": "none", "ranksPerReplica": 6},
}


def job() -> dict[str, object]:
    """One of the policy's ranks has no prompt while rows are drawn; all share one in an update."""
    return {
        **tiny_jobs.PPO,
        "algorithm": {
            **tiny_jobs.PPO["algorithm"],
            "promptsPerStep": 3,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 1,
            "shuffleMiniBatches": False,
        },
        "training": {"autocast": "none", "microBatchTokens": 96},
        "steps": {"total": 2, "validateEvery": 2},
        "checkpoint": {"every": 1},
    }


@pytest.fixture(scope="module")
def several(alone: Callable[..., Path], even_folder: Path) -> Path:
    timeouts = {"livenessSeconds": 60}
    return alone(even_folder, **job(), roles=ROLES, timeouts=timeouts)


def test_parts_of_groups_give_the_numbers_of_one_rank(several, alone, even_folder):
    run_folders.assert_close(several, alone(even_folder, **job()))
    assert run_folders.metrics(several)[-1]["actor/grad_norm"] > 0.0, "behind the critic's warm-up"


@pytest.mark.long  # fourteen ranks; dealt rows are lost and dealt again in test_one_step_off.py
def test_a_killed_job_of_parts_ends_as_an_undisturbed_one(
    several, run_through, even_folder, tmp_path
):
    manifest = tiny_jobs.write_manifest(
        tmp_path / "killed", even_folder, **job(), roles=ROLES, timeouts={"livenessSeconds": 60}
    )
    killed = tmp_path / "killed" / "run"
    run_through(manifest, killed, "rpc.update.answer.before@3=kill", seconds=600)
    assert run_folders.result(killed) == run_folders.result(several)


@pytest.mark.parametrize("replay", [pytest.param("recompute", marks=pytest.mark.long), "rollout"])
def test_replayed_experts_of_prompts_go_along(finished, tiny_folder_of, replay: str):
    folder = tiny_folder_of(0.0, "mixture")
    algorithm = {
        "type": "grpo",
        "promptsPerStep": 4,
        "samplesPerPrompt": 4,
        "miniBatchPrompts": 1,
        "routerReplay": replay,
    }
    of_both = {"algorithm": algorithm, "steps": {"total": 2}}
    one = finished("one", folder, **of_both)
    several = finished("several", folder, **of_both, roles={"actorRollout": {"ranksPerReplica": 2}})
    run_folders.assert_close(several, one)
    assert run_folders.metrics(several)[-1]["actor/grad_norm"] > 0.0
