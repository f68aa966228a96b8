"""Folders of tiny models with a layer that predicts the token after the next."""

import json
from pathlib import Path

import torch
from family_models import FAMILY_MODELS
from safetensors.torch import load_file, save_file
from tiny_models import save_model, save_policy

from ppojob_trainer.models.mtp_forms import MTP_FORMS


def place_of(kind: str) -> str:
    """What the names of the layer's weights begin with."""
    name = MTP_FORMS[kind].list_name
    return "model.layers.2." if name == "layers" else f"model.{name}.0."


def save_mtp_model(folder: Path, kind: str, *, trains: bool = False, **changes: object) -> None:
    """Write a model of two layers and that one; with `trains` one that a tiny job trains."""
    model_class, own = FAMILY_MODELS[kind]
    sizes = {**changes, **own, "num_hidden_layers": 3, "tie_word_embeddings": False}
    if trains:
        save_policy(folder, 0.0, model_class=model_class, **sizes)
    else:
        save_model(folder, model_class, **sizes)
    path = folder / "model.safetensors"
    weights, form = load_file(path), MTP_FORMS[kind]
    width = weights["model.norm.weight"].shape[0]
    generator = torch.Generator().manual_seed(5)
    if form.list_name != "layers":
        own = f"model.{form.list_name}.0."
        weights = {name.replace("model.layers.2.", own): one for name, one in weights.items()}
    at = place_of(kind)
    weights[f"{at}{form.projection}.weight"] = 0.3 * torch.randn(
        width, 2 * width, generator=generator
    )
    for name in (form.state_norm, form.embedding_norm, form.last_norm):
        weights[f"{at}{name}.weight"] = 1.0 + 0.1 * torch.randn(width, generator=generator)
    for name, of in form.copies.items():
        weights[f"{at}{name}"] = weights[of].clone()
    save_file(weights, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    for key in ("layer_types", "mlp_layer_types"):
        if key in config:
            config[key] = config[key][:2]
    (folder / "config.json").write_text(json.dumps(config))
