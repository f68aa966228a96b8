"""Feed-forward blocks in tiles of tokens, held against whole ones."""

import pytest
import torch
from family_models import FAMILY_MODELS
from padded_reference import gradients, relative_difference

from ppojob_trainer.engine.layer_patches import tiled, use_tiles
from ppojob_trainer.models.transformers_modules import unify_modules

UNTILED = {
    *("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "gpt_oss", "granitemoe", "minimax_m2"),
    *("opt", "qwen3_5_moe_text", "qwen3_5_moe", "qwen3_next", "qwen3_vl_moe"),
    *("qwen3_omni_moe_thinker", "mellum", "solar_open"),
    *("flex_olmo", "hunyuan_v1_moe", "granitemoe_swa", "phimoe"),
}
"""Families without a layer that has a plain block by itself."""


@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_each_family_says_the_same_in_tiles_or_has_none(make_model, family):
    model = make_model(family).eval()
    unify_modules(model)  # as of a folder, whose layers have one name in all families
    blocks = [*tiled(model)]
    assert bool(blocks) == (family not in UNTILED)
    states = torch.randn(1, 11, model.config.hidden_size)
    for block in blocks:
        whole = block(states)
        expected = gradients(block, whole.square().sum())
        use_tiles(model, 4)
        output = block(states)
        torch.testing.assert_close(output, whole)
        assert relative_difference(gradients(block, output.square().sum()), expected) < 1e-5


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_falls_with_the_tile_and_bits_are_the_same_each_time(
    make_model, peak_bytes, recompute
):
    found = []
    for tokens in (0, 400, 25, 25):
        torch.manual_seed(0)
        model = make_model(hidden_size=8, intermediate_size=512).train()
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        use_tiles(model, tokens)
        states = torch.randn(1, 400, 8)
        with peak_bytes() as memory:
            model.base_model(inputs_embeds=states).last_hidden_state.square().sum().backward()
        held = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        found.append((memory.peak, held))
    assert all(relative_difference(found[0][1], one) < 1e-5 for _, one in found[1:])
    assert all(torch.equal(one, found[3][1][name]) for name, one in found[2][1].items())
    whole, one_tile, small, _ = (peak for peak, _ in found)
    assert small < one_tile / 4, "else something as wide as a block is whole"
    assert one_tile <= whole
