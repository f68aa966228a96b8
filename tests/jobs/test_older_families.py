import pytest
import run_folders
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.processes, pytest.mark.vllm]


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "ranks", "overrides"),
    [
        ("gpt2", {}, {"layer_norm_epsilon": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}),
        (
            "gpt_neox",
            {"ranksPerReplica": 2, "parallelism": {"tensor": 2}},
            {"layer_norm_eps": 0.1, "hidden_dropout": 0.1},
        ),
    ],
)
def test_every_weight_is_trained_and_exported(finished, tiny_folder_of, family, ranks, overrides):
    folder = tiny_folder_of(0.0, family)
    job = {
        "model": {
            **{"path": str(folder / "model"), "attentionDropout": 0.1},
            "configOverrides": overrides,
        },
        "steps": {"total": 2},
        "timeouts": {"livenessSeconds": 120},
        "rollout": {"engine": "vllm", "dtype": "float32", "maxSequences": 16, "kvCacheGib": 0.1},
        "roles": {"actorRollout": ranks},
    }
    calm = finished("run", folder, **job)
    for record in run_folders.assert_trained(calm, 2, limit=1e-4):
        assert record["actor/grad_norm"] > 0.0
    _, _, kept = run_folders.kept(folder / "model", calm)
    assert not kept
    found = AutoModelForCausalLM.from_pretrained(calm / "export").config.to_dict()
    assert found == {**found, **overrides}
