"""The slow way: every row by itself, its prompt again each time, all logits at once."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from engine_phase import generate
from tiny_models import IMAGE, NAMES, PATCH, turned
from torch import Tensor
from transformers import Gemma4UnifiedForConditionalGeneration, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.image_grids import MistralImages
from ppojob_trainer.data.media.image_squares import Lfm2VlImages
from ppojob_trainer.data.media.images import opened, unpacked
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead, ValueHead
from ppojob_trainer.models.architectures import HEAD
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.vision_tower import attach_tower, tower_inputs
from ppojob_trainer.models.weight_files import own_name
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Finished, Request, SamplingParams
from ppojob_trainer.rows.experience import Experience

_PROCESSORS = (
    Qwen2VLImageProcessorPil,
    Glm4vImageProcessorPil,
    Glm46VImageProcessorPil,
    GotOcr2ImageProcessorPil,
    PixtralImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma4ImageProcessorPil,
    Idefics3ImageProcessorPil,
    SmolVLMImageProcessorPil,
    CLIPImageProcessorPil,
    SiglipImageProcessorPil,
    Ovis2ImageProcessorPil,
    LlavaNextImageProcessorPil,
    LlavaOnevisionImageProcessorPil,
)


def token_logprobs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, by their definition."""
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    logprobs = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return logprobs, -(log_p.exp() * log_p).sum(dim=-1)


def padded_logits(model: PreTrainedModel, rows: Experience) -> list[tuple[Tensor, Tensor]]:
    """By transformers' own attention on a padded batch: what the model says before each token of a
    response, and the response, for each row.
    """
    model.set_attn_implementation("eager")
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    prompts = [rows.prompts[group] for group in rows.row_groups.tolist()]
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    # What lies behind a row is seen by none of its tokens.
    ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    logits = model(input_ids=ids, use_cache=False).logits
    return [
        (row[len(prompt) - 1 :][: len(response)], response)
        for row, prompt, response in zip(logits, prompts, responses, strict=True)
    ]


def padded_logprobs(
    model: PreTrainedModel, rows: Experience, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropy of the tokens of responses; 0 of those that are not trained."""
    parts = [
        token_logprobs(logits, response, temperature)
        for logits, response in padded_logits(model, rows)
    ]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs) * rows.mask, torch.cat(entropy) * rows.mask


def whole_logprobs(
    model: PreTrainedModel, folder: Path, prompt: Tensor, images: bytes, response: Tensor
) -> Tensor:
    """What transformers says of a response: pixels in, log-probabilities out."""
    return token_logprobs(whole_logits(model, folder, prompt, images, response), response)[0]


def whole_logits(
    model: PreTrainedModel, folder: Path, prompt: Tensor, images: bytes, response: Tensor
) -> Tensor:
    """Before each token of a response, of every token."""
    ids = torch.cat([prompt, response[:-1]])[None]
    seen = {}
    if images:
        seen = pixels_of(folder, unpacked(images))
        types = (ids == NAMES.index(IMAGE)).int()
        known = inspect.signature(model.forward).parameters
        told = {"token_type_ids", "mm_token_type_ids"} & known.keys()
        seen |= dict.fromkeys(told, types)
        if isinstance(model, Gemma4UnifiedForConditionalGeneration):
            seen["attention_mask"] = _masks_of_windows(model, ids, types)
    logits: Tensor = model(input_ids=ids, use_cache=False, **seen).logits
    return logits[0, len(prompt) - 1 :]


def _masks_of_windows(model: PreTrainedModel, ids: Tensor, types: Tensor) -> Any:
    """What transformers gives this model where it generates into a cache of fixed size.

    Elsewhere its forward pass lets tokens see ahead in all layers, as that of `gemma4` once did.
    """
    return model.create_masks_for_generate(
        config=model.config,
        inputs_embeds=model.get_input_embeddings()(ids),
        attention_mask=None,
        past_key_values=None,
        position_ids=None,
        mm_token_type_ids=types,
    )


def pixels_of(folder: Path, files: Sequence[bytes]) -> dict[str, Tensor]:
    """What transformers' whole model is given of images."""
    if isinstance(form := read_form(folder), Lfm2VlImages):
        return _padded_splits(form, files)
    processor, options = processor_of(folder), {}
    if isinstance(processor, GotOcr2ImageProcessorPil):
        options["crop_to_patches"] = True
    if isinstance(form, MistralImages):
        options["patch_size"] = form.multiple
    made = processor(images=[opened(one) for one in files], return_tensors="pt", **options)
    if "Unified" in _name_of_processor(folder):
        made = _joined(made["pixel_values"], made["image_position_ids"])
    return {name: one for name, one in made.items() if not name.startswith(("num_", "grids"))}


def _padded_splits(form: Lfm2VlImages, files: Sequence[bytes]) -> dict[str, Tensor]:
    """Tiles, padded to the largest, as by `Lfm2VlImageProcessor`, which wants torchvision."""
    inputs = [tower_inputs(opened(one), form) for one in files]
    shapes = torch.cat([one["spatial_shapes"] for one in inputs])
    lengths = shapes.prod(dim=-1).tolist()
    tiles = torch.cat([one["pixel_values"] for one in inputs]).split(lengths)
    masks = [torch.ones(length, dtype=torch.int32) for length in lengths]
    padded, mask = (torch.nn.utils.rnn.pad_sequence(one, True) for one in (list(tiles), masks))
    return {"pixel_values": padded, "pixel_attention_mask": mask, "spatial_shapes": shapes}


def _joined(patches: Tensor, positions: Tensor) -> dict[str, Tensor]:
    """Patches (b, n, p p 3), joined 2 by 2 as by `Gemma4UnifiedImageProcessor`."""
    side, most, found = 2 * PATCH, patches.shape[1] // 4, {}
    for own, places in zip(patches, positions, strict=True):
        across, down = (places.amax(dim=0) + 1).tolist()
        rows = own[: across * down].view(down, across, PATCH, PATCH, 3).transpose(1, 2)
        pixels = rows.reshape(down // 2, side, across // 2, side, 3).transpose(1, 2)
        pixels = pixels.reshape(-1, side * side * 3)
        at = [(x, y) for y in range(down // 2) for x in range(across // 2)]
        left = most - len(at)
        pixels = torch.cat([pixels, pixels.new_zeros(left, pixels.shape[1])])
        found.setdefault("pixel_values", []).append(pixels)
        found.setdefault("image_position_ids", []).append(torch.tensor(at + [(-1, -1)] * left))
    return {name: torch.stack(of) for name, of in found.items()}


def _name_of_processor(folder: Path) -> str:
    name: str = json.loads((folder / "preprocessor_config.json").read_text())[
        "image_processor_type"
    ]
    return name


def processor_of(folder: Path) -> Any:
    """transformers' processor of images of a model, without torchvision."""
    name = f"{_name_of_processor(folder).removesuffix('Fast').replace('Unified', '')}Pil"
    return next(kind for kind in _PROCESSORS if kind.__name__ == name).from_pretrained(folder)


def as_in_files(model: PreTrainedModel, stacked: dict[str, Tensor]) -> dict[str, Tensor]:
    """What transformers has stacked of experts, by the names that it writes into files."""
    family = FAMILIES.get(model.config.model_type)
    mixture = family.mixture if family else None
    if mixture is None:
        return stacked
    converted = stacked
    if not mixture.is_out_first:
        converted = revert_weight_conversion(model, dict(stacked))
    if model.config.model_type == "qwen3_vl_moe":
        converted = turned(converted)
    kind = model.config.model_type
    return {own_name(name, kind): tensor.contiguous() for name, tensor in converted.items()}


def _of_files(name: str) -> str:
    """What files call a weight of Gemma 4 12B which transformers has in one module with others."""
    name = name.replace("embed_vision.p", "vision_embedder.p")
    return name.replace("embed_vision.multimodal_embedder.", "embed_vision.")


def gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    weights = list(names.values())
    # Towers of LLaVA have layers behind that of their features; these get zeros.
    found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def relative_difference(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm of what is expected, of all tensors together."""
    assert got.keys() == expected.keys()
    off = sum(float((got[name] - expected[name]).double().square().sum()) for name in expected)
    size = sum(float(expected[name].double().square().sum()) for name in expected)
    return (off / size) ** 0.5


def assert_gradients(
    model: PreTrainedModel, reference: PreTrainedModel, loss: Tensor, bound: float
) -> None:
    """What an update has left in a model is the gradient of a loss of the reference."""
    found = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
    assert relative_difference(found, gradients(reference, loss)) < bound


def two_responses(form: MediaForm, shown: Sequence[tuple[Sequence[int], bytes]]) -> Experience:
    """Two responses to each prompt, at most four, which shows its files."""
    torch.manual_seed(3)
    lengths = torch.tensor([4, 6, 2, 5, 7, 3, 1, 5])[: 2 * len(shown)]
    tokens = int(lengths.sum())
    return Experience(
        prompts=[torch.tensor(form.expanded(*one)) for one in shown],
        row_groups=torch.arange(len(shown)).repeat_interleave(2),
        response_tokens=torch.randint(3, 90, (tokens,)),
        lengths=lengths,
        mask=torch.ones(tokens, dtype=torch.bool),
        rollout_logprobs=torch.zeros(tokens),
        images=[files for _, files in shown],
    )


def as_the_whole(
    model: PreTrainedModel,
    whole: PreTrainedModel,
    rows: Experience,
    logprobs: Callable[[Tensor, bytes, Tensor], Tensor],
    share: bool,
    learns: bool,
) -> Tensor:
    """The packed pass over rows, whose values and gradients have to be those of a whole model.

    `logprobs` are that model's, of a prompt, what it shows and a response.
    """
    use_packed_attention(model)
    head = PolicyHead(LogprobSettings(chunk_tokens=5))
    got = packed_pass(model, head, rows, share_prompts=share).outputs[0]
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    expected = torch.cat(
        [
            logprobs(rows.prompts[group], rows.images[group], response)
            for group, response in zip(rows.row_groups.tolist(), responses, strict=True)
        ]
    )
    # On a processor with AMX, transformers' own float32 pass of Gemma 4 E2B's layers is 2.1e-5 from
    # its float64 pass, and so is ours; gradients differ likewise.
    torch.testing.assert_close(got, expected, rtol=0, atol=4e-5)
    factors = torch.randn(len(got))
    ours = gradients(model, (factors * got).sum())
    found = gradients(whole, (factors * expected).sum())
    inner = {name.removeprefix("model."): found[name] for name in found if name != HEAD}
    # A thinker's is its text alone, by whose type no files are known.
    of_files = whole.model if whole.model.config.model_type in FAMILIES else whole
    theirs = {
        f"model.{_of_files(name).removeprefix('model.')}": one
        for name, one in as_in_files(of_files, inner).items()
    }
    theirs |= {HEAD: found[HEAD]} if HEAD in found else {}
    named = {own_name(name, model.config.model_type): one for name, one in theirs.items()}
    if not learns:
        named = {name: one for name, one in named.items() if not name.startswith("visual.")}
    assert relative_difference(ours, named) < 4e-5
    return got


def critic_as_the_whole(
    folder: Path,
    whole: PreTrainedModel,
    rows: Experience,
    logits: Callable[[Tensor, bytes, Tensor], Tensor],
) -> None:
    """A critic whose head is a row of the output layer values a token by its logit.

    `logits` are those of the whole model, of a prompt, what it shows and a response.
    """
    critic = load_model(folder, kind=CRITIC)
    assert not critic.score.weight.any()
    use_packed_attention(critic)
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    with torch.no_grad():
        critic.score.weight.copy_(whole.lm_head.weight[7:8])
        values = packed_pass(critic, ValueHead(), rows).outputs[0]
        expected = torch.cat(
            [
                logits(rows.prompts[group], rows.images[group], response)[:, 7]
                for group, response in zip(rows.row_groups.tolist(), responses, strict=True)
            ]
        )
    if (cap := getattr(critic.config, "final_logit_softcapping", None)) is not None:
        values = cap * torch.tanh(values / cap)  # of logits alone
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


def engine_as_the_whole(
    folder: Path,
    prompts: Sequence[tuple[Sequence[int], bytes]],
    logprobs: Callable[[Tensor, bytes, Tensor], Tensor],
    ends: tuple[int, ...],
    rtol: float = 0.0,
) -> list[tuple[Request, Finished]]:
    """Two rows of each prompt that the engine of transformers draws as a whole model would.

    Args:
        ends: The tokens of what is shown, which the whole model would take for more of it.
    """
    form, model = read_form(folder), load_model(folder)
    assert form is not None
    attach_tower(model, folder, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=256, max_sequences=8)
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=9, stop_token_ids=ends)
    requests = [
        Request(f"{n}/{sample}", tuple(form.expanded(ids, shown)), sampling, sample, images=shown)
        for n, (ids, shown) in enumerate(prompts)
        for sample in range(2)
    ]
    drawn = [*zip(requests, generate(engine, requests), strict=True)]
    for request, row in drawn:
        prompt, response = torch.tensor(request.prompt), torch.tensor(row.tokens)
        with torch.no_grad():
            expected = logprobs(prompt, request.images, response)
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, rtol=rtol, atol=1e-5)
    return drawn


def read_ids(rows: Experience) -> list[Tensor]:
    """Of each row with a trained token what stands before its last one."""
    found = []
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    masks = torch.split(rows.mask, rows.lengths.tolist())
    for group, response, mask in zip(rows.row_groups.tolist(), responses, masks, strict=True):
        if mask.any():
            found.append(torch.cat([rows.prompts[group], response[: int(mask.nonzero().max())]]))
    return found
