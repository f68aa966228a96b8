from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from tiers import first_in_test
from transformers import AutoModelForCausalLM

from ppojob_trainer.models.family import CORRECTION, EXPERT_BIAS
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1_800)]

ENGINES = {"huggingface": {}, "vllm": {"kvCacheGib": 0.1}}
BESIDE = {"training": {"autocast": "none", "reshardAfterForward": False}}
"""What else ranks that share experts are tried with, and checkpoints in the background."""
SHORT = {"steps": {"total": 2}, "timeouts": {"livenessSeconds": 120}}


def points_of(engine: str) -> list[str]:
    points = ["checkpoint.shard.write.middle@4=kill"]
    return points if engine == "vllm" else [*points, "rpc.update.answer.before@2=kill"]  # quicker


def loaded(model: Path, output: Path) -> AutoModelForCausalLM:
    """An export as transformers loads it; each weight of the model was trained that can be."""
    _, _, kept = run_folders.kept(model, output)
    assert all(name.endswith((CORRECTION, EXPERT_BIAS)) for name in kept)
    found, facts = AutoModelForCausalLM.from_pretrained(
        output / "export", dtype=torch.float32, output_loading_info=True
    )
    assert not any(facts.values())
    return found


def assert_trained(output: Path, limit: float = 1e-4) -> None:
    for record in run_folders.metrics(output)[-2:]:
        assert record["actor/grad_norm"] > 0.0
        assert record["training/rollout_probs_diff_mean"] < limit


@pytest.mark.parametrize(
    ("engine", "replay"), first_in_test([("huggingface", "recompute"), ("vllm", "rollout")])
)
def test_a_killed_job_of_experts_ends_as_an_undisturbed_one(
    run_twice, tiny_folder_of, tmp_path: Path, engine: str, replay: str
):
    """Over two ranks with half of the experts each, which share an engine of vLLM."""
    folder = tiny_folder_of(0.0, "mixture")
    job = {
        **SHORT,
        **BESIDE,
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "routerReplay": replay,
        },
        "rollout": {
            "engine": engine,
            "dtype": "float32",
            "maxSequences": 16,
            "parallelism": {"tensor": 2 if engine == "vllm" else 1},
            **ENGINES[engine],
        },
        "roles": {"actorRollout": {"ranksPerReplica": 2, "parallelism": {"expert": 2}}},
        "checkpoint": {"every": 1, "background": True},
    }
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), *points_of(engine))
    for record in run_folders.assert_trained(calm, 2):
        assert record["actor/grad_norm"] > 0.0
    assert all(row["experts"] is not None for row in run_folders.rows(calm, 2)) == (
        replay == "rollout"
    )
    first = loaded(folder / "model", calm).model.layers[0].mlp.experts
    after = load_file(calm / "export" / "model.safetensors")
    names = [f"model.layers.0.mlp.experts.3.{name}_proj.weight" for name in ("gate", "up", "down")]
    gate, up, down = (after[name].float() for name in names)
    assert torch.equal(first.gate_up_proj[3], torch.cat([gate, up]))
    assert torch.equal(first.down_proj[3], down)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "engine", "ranks"), [("granitemoehybrid", "vllm", 1), ("gpt_oss", "huggingface", 2)]
)
def test_a_killed_job_trains_adapters_of_experts_of_one_tensor(
    run_twice, tiny_folder_of, tmp_path: Path, model: str, engine: str, ranks: int
):
    """Merged for vLLM, and beside the weights over two ranks with half of the experts each."""
    folder = tiny_folder_of(0.0, model)
    beside = {"adapters": "beside"} if engine == "huggingface" else ENGINES[engine]
    job = {
        **SHORT,
        "model": {"path": str(folder / "model"), "lora": {"rank": 8, "experts": True}},
        "optimizer": {"learningRate": 1e-2},
        "rollout": {"engine": engine, "dtype": "float32", "maxSequences": 16, **beside},
        "roles": {"actorRollout": {"ranksPerReplica": ranks, "parallelism": {"expert": ranks}}},
        "checkpoint": {"every": 1},
    }
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), *points_of(engine))
    assert_trained(calm)
    before, _, kept = run_folders.kept(folder / "model", calm)
    changed = before.keys() - kept
    stacks = {name for name, tensor in before.items() if tensor.ndim == 3 and "conv" not in name}
    assert stacks <= changed
    held = load_file(calm / "export" / "adapter" / "adapter_model.safetensors")
    assert len(changed) == len(held) // 2
    assert len([name for name in held if ".experts." in name]) == 2 * len(stacks)

    run_folders.export(calm, tmp_path / "again")
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (calm / "export" / name).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("engine", "ranks"), [("vllm", 1), ("huggingface", 2)])
def test_a_job_trains_the_layer_that_predicts_further_tokens(
    run_twice, finished, tiny_folder_of, tmp_path: Path, engine: str, ranks: int
):
    """Engines draw without it, exports have it; biases of routers move, but for its own."""
    folder = tiny_folder_of(0.0, "with_mtp")
    grpo = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatchPrompts": 2}
    job = {
        **SHORT,
        "algorithm": {**grpo, "routerBiasRate": 0.1},
        "model": {"path": str(folder / "model"), "mtp": {"lossCoefficient": 0.3}},
        "rollout": {"engine": engine, "dtype": "float32", "maxSequences": 16, **ENGINES[engine]},
        "roles": {"actorRollout": {"ranksPerReplica": ranks}},
        "checkpoint": {"every": 1},
    }
    if engine == "huggingface":
        calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), *points_of(engine))
    else:
        calm = finished("run", folder, **job)
    for record in run_folders.metrics(calm)[-2:]:
        assert record["actor/mtp_loss"] > 1.0
        assert record["actor/router_max_violation"] > 0.0
        assert record["training/rollout_probs_diff_mean"] < 1e-4
    before, after, kept = run_folders.kept(folder / "model", calm)
    layer = "model.layers.2."
    assert kept == {f"{layer}mlp.gate.{CORRECTION}"}
    moved = after[f"model.layers.1.mlp.gate.{CORRECTION}"]
    moved = (moved - before[f"model.layers.1.mlp.gate.{CORRECTION}"]) / 0.1
    assert torch.allclose(moved, moved.round(), atol=1e-4)
    assert moved.abs().max() <= 4.5  # updates
    assert torch.equal(after[f"{layer}embed_tokens.weight"], after["model.embed_tokens.weight"])
    assert torch.equal(after[f"{layer}shared_head.head.weight"], after["lm_head.weight"])


def job_of_states(engine: str, dtype: str, ranks: int) -> dict[str, object]:
    """Over ranks that share heads of states and of attention, or in one."""
    return {
        **SHORT,
        "rollout": {"engine": engine, "dtype": dtype, "maxSequences": 16, **ENGINES[engine]},
        "roles": {"actorRollout": {"ranksPerReplica": ranks, "parallelism": {"sequence": ranks}}},
        "checkpoint": {"every": 1},
    }


@pytest.mark.parametrize(
    ("model", "engine", "dtype", "ranks"),
    first_in_test(
        [
            ("hybrid", "huggingface", "float32", 2),
            ("hybrid", "vllm", "bfloat16", 1),
            ("lfm2_moe", "huggingface", "float32", 2),
        ]
    ),
)
def test_a_killed_job_of_states_ends_as_an_undisturbed_one(
    run_twice, tiny_folder_of, tmp_path: Path, model: str, engine: str, dtype: str, ranks: int
):
    """That of LFM2 with a critic of adapters, of which transformers has no class."""
    folder, job = tiny_folder_of(0.0, model), job_of_states(engine, dtype, ranks)
    if model == "lfm2_moe":
        job |= {"algorithm": tiny_jobs.PPO["algorithm"], "critic": {"lora": {"rank": 4}}}
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), *points_of(engine))
    assert_trained(calm, 1e-4 if dtype == "float32" else 0.05)
    loaded(folder / "model", calm)
    if model == "lfm2_moe":
        assert run_folders.metrics(calm)[-1]["critic/grad_norm"] > 0.0
        run_folders.export(calm, tmp_path / "critic", "--critic")
        assert load_model(tmp_path / "critic", kind=CRITIC).score.weight.any()


@pytest.mark.parametrize(
    ("model", "engine", "ranks"),
    [("nemotron_h", "huggingface", 2), ("lfm2_moe", "vllm", 1), ("granitemoehybrid", "vllm", 1)],
)
def test_other_states_are_learnt(finished, tiny_folder_of, model: str, engine: str, ranks: int):
    """What kills may lose of states is lost by the others too."""
    folder = tiny_folder_of(0.0, model)
    output = finished("run", folder, **job_of_states(engine, "float32", ranks))
    assert_trained(output)
    loaded(folder / "model", output)


@pytest.mark.long
def test_a_killed_job_of_a_part_ends_as_an_undisturbed_one(run_twice, tiny_folder_of, tmp_path):
    """The export is the larger model again, with what nobody has trained."""
    folder = tiny_folder_of(0.1, "whole")
    job = {
        **SHORT,
        "rollout": {"engine": "vllm", "dtype": "float32", "maxSequences": 16, **ENGINES["vllm"]},
        "checkpoint": {"every": 1},
    }
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), *points_of("vllm"))
    assert_trained(calm)
    before, _, kept = run_folders.kept(folder / "model", calm)
    assert kept == {name for name in before if not name.startswith("language_model.")}
