"""A layer that predicts the token after the next, against that by which transformers drafts."""

from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mtp_models import save_mtp_model
from padded_reference import (
    as_in_files,
    gradients,
    padded_logprobs,
    relative_difference,
    token_logprobs,
)
from safetensors.torch import load_file
from tiny_models import TWO_LAYERS
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpLayer, MtpModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.mtp import Mtp
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.mtp_forms import MTP_FORMS
from ppojob_trainer.rows.experience import Experience

COEFFICIENT = 0.7
IN_MIMO = {
    "mtp_block.": "",
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "post_norm": "final_layernorm",
}


def saved(folder: Path, kind: str) -> Path:
    save_mtp_model(folder, kind, **TWO_LAYERS, vocab_size=97)
    return folder


def update(
    folder: Path, rows: Experience, *, detach: bool = False, **training: object
) -> tuple[dict[str, Tensor], dict[str, float]]:
    model = load_model(folder, with_mtp=True)
    spec = TrainingSpec(**{"autocast": "none", "logprob_chunk_tokens": 8, **training})
    head = PolicyHead(LogprobSettings(0.7, 8, "value"))
    further = Mtp(COEFFICIENT, detach, PolicyHead(LogprobSettings(1.0, 8)))
    optimizer = OptimizerSpec(gradient_clip=0.0)
    engine = TrainEngine(model, head, spec, optimizer, 10, mtp=further)
    goal = PolicyObjective.of(AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3))
    stats = step_statistics([engine.update(rows, goal)])
    trained = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
    return trained, stats


def drafter(folder: Path) -> tuple[PreTrainedModel, MtpModel]:
    """The model and the layer of transformers; that of MiMo in the form of vLLM's class."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    if model.config.model_type == "mimo":
        config = copy(model.config)
        config.mtp_hidden_states_first = True
        layer = MtpLayer(config, type(model.model.layers[0]), type(model.model.norm), 0)
        stored = load_file(folder / "model.safetensors")
        layer.load_state_dict({name: stored[in_mimo(name)] for name in layer.state_dict()})
        layers = torch.nn.ModuleList([layer])
        return model, SimpleNamespace(layers=layers, rotary_emb=model.model.rotary_emb)
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\."]  # the hub's are 61 or 92
    model.config.num_mtp_layers, model.config.mtp_mlp_layer_types = 1, ["sparse"]
    return model, MtpModel.from_pretrained(model)


def last_states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """What comes out of the last norm; with MiMo what goes into it."""
    kept = []
    handle = model.base_model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    states = model.base_model(ids[None], use_cache=False).last_hidden_state
    handle.remove()
    return kept[0] if model.config.model_type == "mimo" else states


def further_logprobs(model: PreTrainedModel, drafts: MtpModel, rows: Experience) -> Tensor:
    """Row by row what the layer says of each response token; 0 of those that it cannot predict."""
    found = []
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    for group, response in zip(rows.row_groups.tolist(), responses, strict=True):
        ids = torch.cat([rows.prompts[group], response])
        states = last_states(model, ids)
        places = torch.arange(1, len(ids) - 1)[None]
        embeddings = model.get_input_embeddings()(ids[None, 1:-1])
        if not places.numel():
            found.append(torch.zeros(len(response)))
            continue
        ahead = drafts.layers[0](
            embeddings,
            states[:, :-2],
            position_embeddings=drafts.rotary_emb(embeddings, places),
            attention_mask=None,
            position_ids=places,
            past_key_values=None,
        )
        said, _ = token_logprobs(model.lm_head(ahead[0]), ids[2:])
        found.append(torch.cat([torch.zeros(2), said])[-len(response) :])
    return torch.cat(found) * rows.mask


@pytest.mark.parametrize("kind", MTP_FORMS)
@pytest.mark.parametrize("share", [True, False])
def test_the_loss_and_all_gradients_are_those_of_the_drafting_layer(
    tmp_path, make_rows, kind, share
):
    folder, rows = saved(tmp_path, kind), make_rows(groups=4)
    rows.prompts[0] = rows.prompts[0][:1]
    got, stats = update(folder, rows, share_prompts=share, micro_batch_tokens=40)

    model, drafts = drafter(folder)
    said = further_logprobs(model, drafts, rows)
    mtp_loss = -said.sum() / rows.mask.sum()
    logprobs, _ = padded_logprobs(model, rows, temperature=0.7)
    loss = -((logprobs - logprobs.detach()).exp() * rows.advantages)[rows.mask].mean()
    assert stats["actor/mtp_loss"] == pytest.approx(mtp_loss.item(), rel=1e-5)
    assert stats["actor/pg_loss"] == pytest.approx(loss.item(), rel=1e-4)
    whole = (loss + COEFFICIENT * mtp_loss).item()
    assert stats["actor/loss"] == pytest.approx(whole, rel=1e-4)
    both = torch.nn.ModuleList([model, drafts.layers])
    found = gradients(both, loss + COEFFICIENT * mtp_loss)
    expected = {in_model(name, kind): gradient for name, gradient in found.items()}
    assert relative_difference(got, as_in_files(model, expected)) < 2e-5


def in_mimo(name: str) -> str:
    """The name in files of MiMo of a weight of the drafter's layer."""
    for theirs, own in IN_MIMO.items():
        name = name.replace(theirs, own)
    return f"model.mtp_layers.0.{name}"


def in_model(name: str, kind: str) -> str:
    """The name of a weight here, of the drafter's or the model's."""
    if name.startswith("0."):
        return name.removeprefix("0.")
    if kind == "mimo":
        return in_mimo(name.removeprefix("1.0."))
    name = name.replace("1.0.post_norm.", "1.0.shared_head.norm.")
    return f"model.layers.2.{name.removeprefix('1.0.').removeprefix('mtp_block.')}"


@pytest.mark.parametrize(
    "training", [{"micro_batch_tokens": 1}, {"activation_checkpointing": True}], ids=str
)
def test_how_it_is_computed_changes_no_gradient(tmp_path, make_rows, training):
    folder, rows = saved(tmp_path, "glm4_moe"), make_rows(groups=4)
    expected, _ = update(folder, rows)
    got, _ = update(folder, rows, **training)
    assert relative_difference(got, expected) < 1e-5


def test_detached_it_trains_its_layer_alone(tmp_path, make_rows):
    folder, rows = saved(tmp_path, "glm4_moe"), make_rows(groups=4)
    rows.advantages[:] = 0.0
    got, _ = update(folder, rows, detach=True)
    whole, _ = update(folder, rows)
    own = {name for name in got if name.startswith("model.layers.2.")}
    assert not any(gradient.any() for name, gradient in got.items() if name not in own)
    assert all(torch.equal(got[name], whole[name]) for name in own)
    assert whole["model.embed_tokens.weight"].any()
