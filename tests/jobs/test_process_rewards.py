import json
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file

ALGORITHM = {
    "type": "prime",
    "promptsPerStep": 4,
    "samplesPerPrompt": 4,
    "miniBatchPrompts": 2,
    "prime": {"beta": 0.5},
}
JOB: dict[str, object] = {
    "algorithm": ALGORITHM,
    "critic": {"optimizer": {"learningRate": 1e-3}},
    "steps": {"total": 3},
    "checkpoint": {"every": 1},
}
APART = {"critic": {"colocateWith": "none"}}


@pytest.mark.long
def test_it_learns_the_outcomes_whatever_is_killed_and_wherever_it_lives(
    run_twice, finished, even_folder, tmp_path
):
    """In pods of its own, and beside the policy; ranks change only rounding."""
    points = (
        "rpc.update.answer.after@2=kill",  # the process reward model, which learns first
        "rpc.forward.answer.before@4=kill",  # its pass, which knows what was learnt
        "rpc.advantages.answer.before@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",
    )
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, even_folder, **JOB, roles=APART), *points)
    lines = run_folders.assert_trained(calm, 3)
    assert not run_folders.unnamed(lines)
    assert lines[0]["reward_model/raw_reward"] != 0.0, "it has learnt before it rewards"
    assert all(0.0 < line["reward_model/dpo_loss"] < 2.0 for line in lines)
    assert all(line["reward_model/grad_norm"] > 0.0 for line in lines)
    assert {line["reward_model/lr"] for line in lines} == {1e-3}
    model = calm.parent / "model"
    run_folders.export(calm, model, "--critic")
    (saved,) = calm.glob("checkpoints/step-000003/critic/*/model.safetensors")
    written, kept = (load_file(path) for path in (model / "model.safetensors", saved))
    assert written.keys() <= kept.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in written.items())
    config, other = (
        json.loads((one / "config.json").read_text()) for one in (model, calm / "export")
    )
    assert config == other

    assert run_folders.result(finished("beside", **JOB)) == run_folders.result(calm)
    layout = {"parallelism": {"pipeline": 2, "sequence": 2}, "ranksPerReplica": 4}
    roles = {"actorRollout": {"ranksPerReplica": 2}, "critic": {**APART["critic"], **layout}}
    run_folders.assert_close(finished("ranks", **JOB, roles=roles), calm)


def test_adapters_of_it_reward_before_they_learn(finished: Callable[..., Path], tmp_path: Path):
    """With `update: after` the first step rewards nothing: nothing has been learnt yet."""
    prime = {**ALGORITHM["prime"], "update": "after"}
    critic = {"lora": {"rank": 4}, "optimizer": {"learningRate": 1e-2}}
    algorithm = {**ALGORITHM, "prime": prime}
    run = finished("adapters", **{**JOB, "algorithm": algorithm, "critic": critic})
    for option in ("--critic", "--adapters"):
        run_folders.export(run, tmp_path / option, "--critic", option)
    files = sorted(path.name for path in (tmp_path / "--adapters").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    first, second, _ = run_folders.assert_trained(run, 3)
    assert first["reward_model/raw_reward"] == first["reward_model/reward"] == 0.0
    assert first["reward_model/dpo_loss"] == pytest.approx(0.6931, abs=0.1)
    assert second["reward_model/raw_reward"] != 0.0


def test_one_round_of_more_prompts_and_a_reference_of_its_own(finished, even_folder, tmp_path):
    """As verl's recipe has it, of a model that was made of another one before."""
    teacher = tiny_jobs.make_teacher(even_folder / "model", tmp_path / "teacher")
    sampling = {"promptsPerRound": 8, "maxRounds": 1, "meanAbove": 0.2, "meanBelow": 0.8}
    prime = {**ALGORITHM["prime"], "update": "after"}
    algorithm = {**ALGORITHM, "prime": prime, "dynamicSampling": sampling}
    critic = {"path": str(teacher), "referencePath": str(even_folder / "model")}
    changes = {"algorithm": algorithm, "critic": critic, "steps": {"total": 1}}
    (line,) = run_folders.assert_trained(finished("recipe", **{**JOB, **changes}), 1)
    assert line["train/num_gen_batches"] == 1.0
    assert line["training/filter_groups/wasted_share"] == 0.5
    assert line["reward_model/raw_reward"] != 0.0
