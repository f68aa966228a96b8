"""Keys of config.json that a job overrides, in every family, against transformers' own models."""

import json
from pathlib import Path

import pytest
import torch
from family_models import AS_OTHERS, FAMILY_MODELS, MIXTURE_MODELS
from overridden import other_values, overridden
from padded_reference import padded_logprobs
from tiny_models import TWO_LAYERS, save_model

from ppojob_api.v1alpha1.model import ModelSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.config_changes import changed_document, check_overrides, config_changes
from ppojob_trainer.models.config_files import read_config
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.model_classes import language_config
from ppojob_trainer.rows.experience import Experience

SIZES = {"vocab_size": 50, **TWO_LAYERS, "pad_token_id": 0, "eos_token_id": 0}
MODELS = {**FAMILY_MODELS, "gemma4_text of 26B": MIXTURE_MODELS["gemma4_text"]}
HALF_TURNED = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}
OPTIONS = {"stablelm": {"rope_parameters": HALF_TURNED}}
"""What a quarter of a tiny head turns by does not depend on the base."""
HEAD = PolicyHead(LogprobSettings())


def rows() -> Experience:
    torch.manual_seed(0)
    return Experience(
        prompts=[torch.randint(3, 50, (length,)) for length in (4, 7)],
        row_groups=torch.tensor([0, 0, 1]),
        response_tokens=torch.randint(3, 50, (24,)),
        lengths=torch.tensor([6, 9, 9]),
        mask=torch.ones(24, dtype=torch.bool),
        rollout_logprobs=torch.zeros(24),
    )


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=[pytest.mark.long] * (one in AS_OTHERS)) for one in MODELS]
)
@torch.no_grad()
def test_trainer_and_export_follow_each_key(family: str, tmp_path: Path):
    kind, options = MODELS[family]
    model = save_model(tmp_path, kind, **{**SIZES, **options, **OPTIONS.get(family, {})}).eval()
    plain, _ = padded_logprobs(model, rows())
    document = json.loads((tmp_path / "config.json").read_text())
    for key, value in other_values(read_config(tmp_path / "config.json")).items():
        asked = {"path": str(tmp_path), "configOverrides": {key: value}}
        spec = ModelSpec.model_validate(asked)
        assert not list(check_overrides(spec))
        overrides = config_changes(tmp_path, spec)
        trained = load_model(tmp_path, overrides=overrides)
        use_packed_attention(trained)
        (ours, *_) = packed_pass(trained, HEAD, rows()).outputs
        expected, _ = padded_logprobs(overridden(model, {key: value}), rows())
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        if "drop" in key:  # of which nothing is seen but in training
            (ours, *_) = packed_pass(trained.train(), HEAD, rows()).outputs
        assert (ours - plain).abs().max() > 1e-2, key
        export = tmp_path / key
        export.mkdir()
        (export / "config.json").write_text(json.dumps(changed_document(document, overrides)))
        found = language_config(export).to_dict()
        assert {**found, **(found.get("rope_parameters") or {})}[key] == value
