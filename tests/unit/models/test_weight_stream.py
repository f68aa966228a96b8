from pathlib import Path

import pytest
import torch
from family_models import FAMILY_MODELS
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.family import CORRECTION
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import named_full_tensors
from ppojob_trainer.models.weight_stream import stored_weights

NORM = "model.norm.weight"
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_what_a_loaded_model_has(tmp_path: Path, tied: bool, dtype: torch.dtype) -> None:
    save_model(tmp_path, tie_word_embeddings=tied)
    loaded = list(named_full_tensors(load_model(tmp_path, dtype)))
    streamed = list(stored_weights(tmp_path, dtype, CPU))
    assert [name for name, _ in streamed] == [name for name, _ in loaded]
    for (name, ours), (_, theirs) in zip(streamed, loaded, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs), name


def test_tensors_that_the_model_does_not_have_stay_in_the_file(tmp_path: Path) -> None:
    save_model(tmp_path, tie_word_embeddings=True)
    names = [name for name, _ in stored_weights(tmp_path, torch.float32, CPU)]
    changed(tmp_path, **{"lm_head.weight": torch.ones(3)})
    assert [name for name, _ in stored_weights(tmp_path, torch.float32, CPU)] == names


def test_what_routers_compute_with_is_not_rounded(tmp_path: Path) -> None:
    kind, options = FAMILY_MODELS["glm4_moe"]
    model = save_model(tmp_path, kind, num_hidden_layers=2, **options)
    streamed = dict(stored_weights(tmp_path, torch.bfloat16, CPU))
    exact = {name for name, tensor in streamed.items() if tensor.dtype == torch.float32}
    assert all(".mlp.gate." in name for name in exact)
    assert {name.rpartition(".")[2] for name in exact} == {"weight", CORRECTION}
    router = model.model.layers[1].mlp.gate.weight
    assert torch.equal(streamed["model.layers.1.mlp.gate.weight"], router)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, f"it holds no {NORM}"),
        (torch.ones(3), f"got {NORM} of shape (3,)"),
        (torch.full((16,), torch.nan), f"NaN or infinite in {NORM}"),
    ],
)
def test_what_is_no_weight_of_the_model(tmp_path: Path, value: torch.Tensor, told: str) -> None:
    save_model(tmp_path, tie_word_embeddings=True)
    changed(tmp_path, **{NORM: value})
    with pytest.raises(ConfigError) as refused:
        list(stored_weights(tmp_path, torch.float32, CPU))
    (line,) = refused.value.problems
    assert line.startswith("spec.model.path: got ")
    assert told in line


def changed(folder: Path, **changes: torch.Tensor | None) -> None:
    """Save other tensors in a model's file; None takes one away."""
    path = folder / "model.safetensors"
    tensors = {k: v for k, v in {**load_file(path), **changes}.items() if v is not None}
    save_file(tensors, path, {"format": "pt"})
