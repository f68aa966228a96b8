import json
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification

STEPS = 4
ADAPTERS = {
    "rank": 4,
    "alpha": 8,
    "targetModules": ["q_proj", "v_proj", "down_proj"],
    "dropout": 0.1,
    "modulesToSave": ["embed_tokens"],
}
EXPORTED = ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json")


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in EXPORTED]


def test_a_killed_job_of_adapters_ends_as_an_undisturbed_one(
    start, run_through, once: Path, tiny_job, tiny_folder: Path, tmp_path: Path
):
    """The KL is to the policy without adapters, and with the layer beside them as it began."""
    sections: dict[str, object] = {
        "model": {"path": str(tiny_folder / "model"), "lora": ADAPTERS, "averageDecay": 0.5},
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "kl": {"in": "reward", "lossTerm": {"estimator": "full"}},
        },
        "optimizer": {"learningRate": 1e-2, "loraPlusRatio": 4.0},
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "steps": {"total": STEPS},
        "checkpoint": {"every": 1},
    }
    job = tiny_job(**sections)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start(job, whole).succeed()
    trained = run_folders.metrics(whole)[-STEPS:]
    first, *later = (line["actor/reward_kl_penalty"] for line in trained)
    # Adapters begin at nothing: the policy is its reference, whose passes give the same bits.
    assert first == 0.0
    assert all(distance != 0.0 for distance in later)

    before, after, same = run_folders.kept(tiny_folder / "model", whole)
    embedding = "model.embed_tokens.weight"
    targets = ("q_proj.weight", "v_proj.weight", "down_proj.weight", embedding)
    assert before.keys() - same == {name for name in before if name.endswith(targets)}
    stored = load_file(whole / "export" / "adapter" / "adapter_model.safetensors")
    assert torch.equal(stored[f"base_model.model.{embedding}"], after[embedding])

    points = (
        "rpc.update.answer.before@1=kill",  # in step 1: back to the beginning
        "rpc.sync_weights.answer.before@3=kill",
        "checkpoint.shard.write.middle@4=kill",
        "export.rename.before@1=kill",
    )
    run_through(job, killed, *points, seconds=500)
    assert run_folders.result(killed) == run_folders.result(whole)
    assert contents(killed / "export") == contents(whole / "export")

    # A checkpoint has all that an export is made of, but for the base.
    run_folders.export(whole, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(whole / "export")
    alone = tmp_path / "alone"
    run_folders.export(whole, alone, "--adapters")
    kept = {path.name: path.read_bytes() for path in alone.iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (whole / "export/adapter").iterdir()}

    # The next job begins with them: its reference is the model without, its engine has them.
    model = {"path": str(tiny_folder / "model"), "lora": {**ADAPTERS, "path": str(alone)}}
    following = {**sections, "model": model, "steps": {"total": 2}}
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    start(tiny_job(**following), calm).succeed()
    record = run_folders.metrics(calm)[-2]
    assert record["step"] == 1
    assert record["actor/reward_kl_penalty"] != 0.0
    assert record["training/rollout_probs_diff_mean"] < 1e-5
    for marker in once.iterdir():
        marker.unlink()
    run_through(tiny_job(**following), disturbed, "rpc.update.answer.after@1=kill")
    assert run_folders.result(disturbed) == run_folders.result(calm)


@pytest.mark.long
@pytest.mark.parametrize("own", [{"baseType": "nf4"}, {"init": "pissa"}], ids=str)
def test_a_killed_job_of_adapters_beside_weights_ends_as_an_undisturbed_one(
    own, start, run_through, tiny_job, tiny_folder: Path, tmp_path: Path
):
    """Over two ranks, with engines and a reference in pods of their own that read the folder."""
    lora = {"rank": 4, "alpha": 8, "targetModules": ["q_proj", "down_proj"], **own}
    sections: dict[str, object] = {
        "model": {"path": str(tiny_folder / "model"), "lora": lora},
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "kl": {"in": "reward"},
        },
        "optimizer": {"learningRate": 1e-2, "weightDecay": 0.0},
        "rollout": {"adapters": "beside", "dtype": "float32"},
        "roles": {
            "actorRollout": {"ranksPerReplica": 2},
            "rollout": {"ranksPerReplica": 1},
            "reference": {"colocateWith": "none"},
        },
        "steps": {"total": 2},
        "checkpoint": {"every": 1},
    }
    job, whole, killed = tiny_job(**sections), tmp_path / "whole", tmp_path / "killed"
    start(job, whole).succeed()
    trained = run_folders.metrics(whole)[-2:]
    first, later = (line["actor/reward_kl_penalty"] for line in trained)
    # All three have one base, of which one begins with a part taken away and added again.
    assert first == pytest.approx(0.0, abs=1e-6 if "init" in own else 0.0)
    assert abs(later) > 1e-5
    assert all(line["training/rollout_probs_diff_mean"] < 1e-5 for line in trained)

    points = ("rpc.update.answer.before@1=kill", "checkpoint.shard.write.middle@3=kill")
    run_through(job, killed, *points, seconds=500)
    assert run_folders.result(killed) == run_folders.result(whole)
    assert contents(killed / "export") == contents(whole / "export")

    before, _, same = run_folders.kept(tiny_folder / "model", whole)
    changed = ("q_proj.weight", "down_proj.weight") if "init" in own else ("_proj.weight",)
    assert before.keys() - same == {name for name in before if name.endswith(changed)}
    run_folders.export(whole, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(whole / "export")


@pytest.mark.long
def test_a_killed_job_of_lengths_of_rows_ends_as_an_undisturbed_one(
    alone, run_through, tiny_job, tiny_folder: Path, tmp_path: Path
):
    """Of a policy and its critic, over two ranks each, with engines in pods of their own."""
    lora = {"rank": 2, "targetModules": ["q_proj", "down_proj"], "weightDecomposed": True}
    sections: dict[str, object] = {
        **tiny_jobs.PPO,
        "model": {"path": str(tiny_folder / "model"), "lora": lora},
        "critic": {"lora": lora, "optimizer": {"learningRate": 1e-2}},
        "optimizer": {"learningRate": 1e-2},
        "rollout": {"engine": "huggingface", "adapters": "beside", "dtype": "float32"},
        "roles": {
            "actorRollout": {"ranksPerReplica": 2},
            "critic": {"colocateWith": "none", "ranksPerReplica": 2},
            "rollout": {"ranksPerReplica": 1},
        },
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
    }
    whole, killed = alone(**sections), tmp_path / "killed"
    trained = run_folders.metrics(whole)[-3:]
    assert all(line["training/rollout_probs_diff_mean"] < 1e-5 for line in trained)
    assert len({line["critic/vf_loss"] for line in trained}) == 3

    points = (
        "rpc.update.answer.before@2=kill",  # in step 1: back to the beginning
        "rpc.restore.answer.before@2=kill",
        "checkpoint.shard.write.middle@5=kill",
    )
    run_through(tiny_job(**sections), killed, *points, seconds=500)
    assert run_folders.result(killed) == run_folders.result(whole)
    assert contents(killed / "export") == contents(whole / "export")
    for role in ("actorRollout", "critic"):
        paths = list(whole.glob(f"checkpoints/latest/{role}/*/model.safetensors"))
        assert len(paths) == 2
        kept = {name.rpartition(".")[2] for path in paths for name in load_file(path)}
        assert {"lora_a", "lora_b", "lora_m"} <= kept
    begins_with_the_critic_of(whole, alone, sections, tmp_path / "critic")

    # Rows of the export have the lengths that were learnt; others are as they were.
    before, after, same = run_folders.kept(tiny_folder / "model", whole)
    lengths = load_file(whole / "export" / "adapter" / "adapter_model.safetensors")
    changed = before.keys() - same
    assert changed == {n for n in before if n.endswith(("q_proj.weight", "down_proj.weight"))}
    for name in changed:
        learnt = lengths[f"base_model.model.{name.removesuffix('weight')}lora_magnitude_vector"]
        assert not torch.allclose(before[name].norm(dim=1), learnt, rtol=1e-4)
        torch.testing.assert_close(after[name].norm(dim=1), learnt)


def begins_with_the_critic_of(run: Path, alone, job: dict, model: Path) -> None:
    """Another job's first values are those of the run's export; else they would be 0."""
    run_folders.export(run, model, "--critic")
    _, told = AutoModelForTokenClassification.from_pretrained(model, output_loading_info=True)
    assert not told["missing_keys"] | told["unexpected_keys"]
    run_folders.export(run, model / "adapter", "--critic", "--adapters")
    config = json.loads((model / "adapter" / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("TOKEN_CLS", ["score"])
    later = alone(**{**job, "critic": {"path": str(model)}, "steps": {"total": 1}})
    assert run_folders.metrics(later)[-1]["critic/values/mean"] != 0.0
