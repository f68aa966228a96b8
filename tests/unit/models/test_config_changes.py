"""Positions, length and dropout that a job changes, against YaRN's formula and transformers."""

import json
import math
from pathlib import Path

import pytest
import torch
from family_models import FAMILY_MODELS
from refused_jobs import edit
from tiny_models import save_model
from transformers import AutoModelForCausalLM

from ppojob_api.v1alpha1.model import ModelSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.folder_checks import check_model_folder, context_tokens
from ppojob_trainer.models.kinds import CRITIC, POLICY, ModelKind
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors

HEAD, THETA, TRAINED, FACTOR = 32, 500.0, 64, 4.0
FORMS = ("rope_parameters", "rope_theta")
YARN = {"type": "yarn", "factor": FACTOR}


@pytest.fixture(params=FORMS)
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A model of transformers 5, and one whose config.json has the form of 4."""
    folder = tmp_path / "model"
    rope = {"rope_type": "default", "rope_theta": THETA}
    sizes = {"hidden_size": 2 * HEAD, "max_position_embeddings": TRAINED, "initializer_range": 0.3}
    save_model(folder, rope_parameters=rope, **sizes)
    if request.param == "rope_theta":
        edit(folder / "config.json", {"rope_parameters": None, "rope_theta": THETA})
    return folder


def spec(folder: Path, **changes: object) -> ModelSpec:
    return ModelSpec.model_validate({"path": str(folder), **changes})


def yarn(factor: float = FACTOR, trained: int = TRAINED) -> tuple[list[float], float]:
    """Angles a position, and what cosines and sines count times: equations 17 to 23 of the paper.

    Dimensions that turn more than 32 times over the trained length stay, those that turn less than
    once are stretched, in between a ramp over the numbers of the dimensions, as by its authors.
    """

    def dimension(turns: float) -> float:
        return HEAD * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), HEAD - 1)
    angles = []
    for number in range(HEAD // 2):
        plain = THETA ** (-2 * number / HEAD)
        stretched = min(max((number - low) / (high - low), 0.0), 1.0)
        angles.append(plain * (1 - stretched) + plain / factor * stretched)
    return angles, 0.1 * math.log(factor) + 1.0


@pytest.mark.parametrize("kind", [POLICY, CRITIC])
def test_yarn_turns_positions_as_its_paper_says(folder: Path, kind: ModelKind):
    overrides = config_changes(folder, spec(folder, ropeScaling=YARN))
    rotary = load_model(folder, kind=kind, overrides=overrides).base_model.rotary_emb
    angles, scale = yarn()
    assert rotary.inv_freq.tolist() == pytest.approx(angles, rel=1e-6)
    assert rotary.attention_scaling == pytest.approx(scale)


def test_llama3_turns_positions_as_its_authors_have_it(folder: Path):
    """Waves above 64 tokens are stretched, those below 32 stay, between them in their share."""
    scaling = {"type": "llama3", "factor": 8.0, "lowFreqFactor": 1.0, "highFreqFactor": 2.0}
    model = spec(folder, ropeScaling=scaling)
    rotary = load_model(folder, overrides=config_changes(folder, model)).base_model.rotary_emb
    expected = []
    for number in range(HEAD // 2):
        plain = THETA ** (-2 * number / HEAD)
        turns = TRAINED * plain / (2 * math.pi)
        share = min(max((turns - 1.0) / (2.0 - 1.0), 0.0), 1.0)
        expected.append(plain * share + plain / 8.0 * (1 - share))
    assert rotary.inv_freq.tolist() == pytest.approx(expected, rel=1e-6)


def test_linear_divides_every_angle(folder: Path):
    model = spec(folder, ropeScaling={"type": "linear", "factor": 2.0})
    rotary = load_model(folder, overrides=config_changes(folder, model)).base_model.rotary_emb
    plain = [THETA ** (-2 * number / HEAD) / 2 for number in range(HEAD // 2)]
    assert rotary.inv_freq.tolist() == pytest.approx(plain, rel=1e-6)


LENGTHS = [
    ({}, TRAINED),
    ({"ropeScaling": YARN}, 256),
    ({"ropeScaling": {**YARN, "originalMaxPositionEmbeddings": 32}}, 128),
    ({"ropeScaling": {**YARN, "factor": 1.5}}, 96),
    ({"ropeScaling": {"type": "llama3", "factor": 8.0}}, 512),
    ({"ropeScaling": {"type": "linear", "factor": 2.0}}, None),
    ({"maxPositionEmbeddings": 100}, 100),
    ({"ropeScaling": YARN, "maxPositionEmbeddings": 100}, 100),
]


@pytest.mark.parametrize(("changes", "tokens"), LENGTHS)
def test_how_long_rows_may_be(folder: Path, changes, tokens: int | None):
    overrides = config_changes(folder, spec(folder, **changes))
    report = check_model_folder(folder, overrides=overrides)
    assert (report.errors, report.context_tokens) == ([], tokens)
    config = load_model(folder, overrides=overrides).config
    assert context_tokens(config.to_dict()) == tokens


def test_dropout_and_a_folder_of_another_model(folder: Path):
    model = spec(folder, attentionDropout=0.25)
    config = load_model(folder, overrides=config_changes(folder, model)).config
    assert config.attention_dropout == 0.25
    assert config_changes(folder.parent, model) == {}


def test_an_export_is_the_model_that_was_trained(folder: Path, tmp_path: Path):
    """transformers reads it by itself, and the same job begins with it again."""
    model = spec(folder, ropeScaling=YARN, attentionDropout=0.25)
    overrides = config_changes(folder, model)
    trained = load_model(folder, overrides=overrides)
    target = tmp_path / "export"
    options = {"model_folder": folder, "dtype": torch.float32, "overrides": overrides}
    export_model(target, hf_named_tensors(trained), **options)
    rows = torch.arange(200)[None] % 50
    ours, plain = trained(rows).logits, load_model(folder)(rows).logits
    assert torch.equal(AutoModelForCausalLM.from_pretrained(target).eval()(rows).logits, ours)
    assert not torch.allclose(ours, plain, atol=1e-2)
    assert config_changes(target, spec(target, ropeScaling=YARN)) == {
        name: value for name, value in overrides.items() if name != "attention_dropout"
    }
    written = json.loads((target / "config.json").read_text())
    before = json.loads((folder / "config.json").read_text())
    assert [name in written for name in FORMS] == [name in before for name in FORMS]


def test_positions_that_are_refused_can_be_changed(folder: Path):
    rope = {"rope_type": "dynamic", "rope_theta": THETA, "factor": 4.0}
    edit(folder / "config.json", {"rope_parameters": rope})
    model = spec(folder, ropeScaling=YARN)
    angles, _ = yarn()
    rotary = load_model(folder, overrides=config_changes(folder, model)).base_model.rotary_emb
    assert rotary.inv_freq.tolist() == pytest.approx(angles, rel=1e-6)


@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_a_family_takes_what_is_changed_or_refuses_it_by_name(family: str, tmp_path: Path):
    model_class, options = FAMILY_MODELS[family]
    save_model(tmp_path / "model", model_class, **options)
    model = spec(tmp_path / "model", ropeScaling=YARN, attentionDropout=0.25)
    overrides = config_changes(model.path, model)
    report = check_model_folder(Path(model.path), overrides=overrides)
    is_seeing = FAMILIES[family].is_multimodal
    is_refused = is_seeing or FAMILIES[family].has_ropes_by_layer
    is_refused = is_refused or family in ("mixtral", "phi3", "phimoe", "nemotron_h", "gpt2", "opt")
    refused = {"spec.model.ropeScaling.type"} if is_refused else set()
    assert {problem.where for problem in report.errors} == refused
    if is_refused:
        with pytest.raises(ConfigError, match=r"spec\.model\.ropeScaling\.type"):
            load_model(model.path, overrides=overrides)
    else:
        rotary = load_model(model.path, overrides=overrides).base_model.rotary_emb
        assert rotary.attention_scaling == pytest.approx(yarn()[1])
