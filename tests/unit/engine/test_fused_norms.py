"""The norm of a layer in one kernel, against that of transformers."""

import pytest
import torch
from family_models import FAMILY_MODELS

from ppojob_trainer.engine.layer_patches import fusible, normalised
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.tensor_styles import TensorLayer

FUSED = sorted(name for name in FAMILY_MODELS if not (FAMILIES[name].norm_type))


@pytest.mark.parametrize("family", FUSED)
def test_it_is_that_of_transformers_with_its_gradients(make_model, family):
    layer, results = make_model(family).base_model.layers[0], []
    for name in FAMILIES[family].norms:
        norm = getattr(layer, name)
        norm.weight.data.normal_()
        states = torch.randn(7, 3, len(norm.weight))
        for compute in (norm, lambda x, norm=norm: normalised(norm, x)):
            given = states.clone().requires_grad_()
            output = compute(given)
            gradients = torch.autograd.grad(output.square().sum(), [given, norm.weight])
            results.append((output, *gradients))
    for theirs, ours in zip(results[::2], results[1::2], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_products_are_made_of_has_their_type(make_model):
    norm = make_model().base_model.layers[0].input_layernorm
    states = torch.randn(5, len(norm.weight))
    assert normalised(norm, states).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert normalised(norm, states).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_norms_whose_gradients_are_summed_over_tensor_ranks_are_left_alone(make_model, family):
    model = make_model(family)
    norms = [*fusible(model)]
    whole = 0 if "centred" in FAMILIES[family].norm_type else len(FAMILIES[family].norms)
    assert len(norms) == whole * len(model.base_model.layers)
    for norm in norms:
        norm.__class__ = type("Summed", (TensorLayer, type(norm)), {})
    assert not [*fusible(model)]
