"""An export of adapters: merged by the dense formula, and apart by PEFT's names."""

import json

import pytest
import torch
from safetensors.torch import load_file

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.models.lora import adapters_in

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [10.0, 2.5])
def test_merged_and_apart(dtype, alpha, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    generator = torch.Generator().manual_seed(0)
    w, a, b = (torch.randn(*shape, generator=generator) for shape in ((6, 8), (3, 8), (6, 3)))
    weights = {f"{LAYER}.weight": w.to(dtype), "model.norm.weight": torch.ones(8, dtype=dtype)}
    lora = LoraSpec(rank=3, alpha=alpha)
    adapters = adapters_in({f"{LAYER}.lora_a": a, f"{LAYER}.lora_b": b}, lora)
    # The same tensors: whether adapters are equal is not asked, since tensors have no such answer.
    ((name, adapter),) = adapters.items()
    assert (name, adapter.a, adapter.b, adapter.lora) == (f"{LAYER}.weight", a, b, lora)
    target = tmp_path / "export"
    export_model(
        target, weights.items(), model_folder=tmp_path / "model", dtype=dtype, adapters=adapters
    )
    found = load_file(target / "model.safetensors")
    assert found.keys() == weights.keys()
    assert torch.equal(found["model.norm.weight"], weights["model.norm.weight"])
    dense = (w.to(dtype).float() + alpha / 3 * (b @ a)).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found[f"{LAYER}.weight"], dense, rtol=tolerance, atol=tolerance)

    # The names and words of PEFT 0.21, which loads such a folder.
    apart = load_file(target / "adapter" / "adapter_model.safetensors")
    assert apart.keys() == {f"base_model.model.{LAYER}.lora_{kind}.weight" for kind in "AB"}
    assert torch.equal(apart[f"base_model.model.{LAYER}.lora_A.weight"], a)
    assert torch.equal(apart[f"base_model.model.{LAYER}.lora_B.weight"], b)
    config = json.loads((target / "adapter" / "adapter_config.json").read_text())
    expected = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": alpha}
    expected |= {"target_modules": ["q_proj"], "bias": "none", "use_rslora": False}
    expected |= {"base_model_name_or_path": str(tmp_path / "model")}
    assert expected.items() <= config.items()
