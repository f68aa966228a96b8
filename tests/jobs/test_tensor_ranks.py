"""Ranks that share matrix products: the numbers of one rank, and nothing lost by kills."""

from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PATIENT = {"timeouts": {"livenessSeconds": 60}}
TWO = {"ranksPerReplica": 2, "parallelism": {"tensor": 2}}
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"tensor": 2}}
WHOLE_BATCH = {
    **tiny_jobs.PPO["algorithm"],
    "miniBatchPrompts": 4,
    "shuffleMiniBatches": False,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """Tiny folders, by their dropout, of a model whose heads two ranks can share."""
    made: dict[float, Path] = {}

    def folder(dropout: float) -> Path:
        if dropout not in made:
            made[dropout] = tmp_path_factory.mktemp("pair")
            tiny_jobs.make_tiny_folder(made[dropout], dropout, "pair")
        return made[dropout]

    return folder


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO,
                "critic": {"colocateWith": "none", "ranksPerReplica": 2},
                "reference": {"colocateWith": "none", **TWO_BY_TWO},
                "rewardModel": {"colocateWith": "none", **TWO},
            },
            id="apart",
        ),
    ],
)
def test_four_models_over_tensor_ranks_give_the_numbers_of_one_rank(start, pairs, tmp_path, roles):
    """Of layouts that differ from role to role as well."""
    folder = pairs(0.0)
    judge = tiny_jobs.make_classifier(folder / "model", tmp_path / "classifier")
    job = {
        **tiny_jobs.PPO,
        **PATIENT,
        "steps": {"total": 3, "validateEvery": 3},
        "algorithm": WHOLE_BATCH,
        "rewards": [],
        "rewardModel": {"path": str(judge), "dtype": "float32"},
    }
    outputs = []
    for name, layout in (("one", {}), ("tensor", roles)):
        (tmp_path / name).mkdir()
        manifest = tiny_jobs.write_manifest(tmp_path / name, folder, **job, roles=layout)
        start(manifest, tmp_path / name / "run").succeed(600)
        outputs.append(tmp_path / name / "run")
    one, tensor = outputs
    run_folders.assert_close(tensor, one)
    first, second = (run_folders.metrics(output)[1] for output in outputs)
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)


def test_a_killed_job_of_tensor_ranks_ends_as_an_undisturbed_one(
    run_through, pairs, tmp_path, output
):
    """With dropout, so that random states count too, and the whole KL in the loss."""
    job = {
        **PATIENT,
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "kl": {"in": "loss", "estimator": "full"},
        },
        "steps": {"total": 6, "validateEvery": 3},
        "recovery": {"restartsWithoutProgress": 100},
        "roles": {"actorRollout": TWO},
    }
    calm = tmp_path / "calm"
    calm.mkdir()
    undisturbed = tiny_jobs.undisturbed_result(calm, pairs(0.1), **job)
    points = [
        "rpc.update.answer.before@3=kill",
        "rpc.update.answer.after@5=kill",
        "checkpoint.shard.write.middle@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",  # the whole job
    ]
    manifest = tiny_jobs.write_manifest(tmp_path, pairs(0.1), **job)
    run_through(manifest, output, *points, seconds=600)
    assert run_folders.result(output) == undisturbed
