"""Images in prompts: what trainer and engine compute is what transformers' whole model does."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from engine_phase import generate
from padded_reference import (
    as_the_whole,
    critic_as_the_whole,
    engine_as_the_whole,
    pixels_of,
    processor_of,
    two_responses,
    whole_logits,
    whole_logprobs,
)
from seeing_models import FAMILIES, SEEING, form_of, save_seeing_model, tried, whole_class
from tiny_models import IMAGE, NAMES, PATCH, image, noise
from transformers import SmolVLMConfig
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.images import LaterImage, opened, packed, packed_later, unpacked
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.towers import TOWERS
from ppojob_trainer.models.vision_tower import attach_tower, tower_of
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams
from ppojob_trainer.rows.experience import Experience, joined

TOKEN = NAMES.index(IMAGE)
IMAGES = [
    packed([noise(1, (40, 20)), image("blue")]),
    b"",
    packed([noise(2, (9, 35))]),
    packed([noise(3, (9, 35))]),
]
PROMPTS = [[5, TOKEN, 7, 8, TOKEN, 9], [10, 11, 12], [TOKEN, 13], [TOKEN, 13]]


def make_rows(form: ImageForm) -> Experience:
    return two_responses(form, list(zip(PROMPTS, IMAGES, strict=True)))


OTHERWISE = [SEEING[name] for name in ("seeing", "seeing_tiles", "seeing_squares", "seeing_told")]
"""Of each way to see one: these also where a tower is frozen, and where prompts are not shared."""


@pytest.mark.parametrize(
    ("kind", "share", "learns"),
    [
        *((kind, True, True) for kind in FAMILIES),
        *((kind, share, not share) for kind in OTHERWISE for share in (True, False)),
    ],
)
def test_the_packed_forward_is_that_of_the_whole_model(tmp_path, kind, share, learns):
    whole = save_seeing_model(tmp_path, kind, tie_word_embeddings=True)
    model = load_model(tmp_path, with_tower=learns)
    rows = make_rows(form_of(tmp_path))
    rows = joined([rows.select([0, 1, 2, 3]), rows.select([4, 6, 5, 7])])
    got = as_the_whole(model, whole, rows, partial(whole_logprobs, whole, tmp_path), share, learns)
    head = PolicyHead(LogprobSettings(chunk_tokens=5))
    torch.testing.assert_close(packed_pass(model, head, rows).outputs[0], got, rtol=1e-5, atol=1e-5)


def test_the_mixture_of_gemma_4_sees_as_the_whole_model(tmp_path: Path) -> None:
    """As 26B-A4B, whose layers have experts beside a plain block."""
    experts = {"num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 16}
    experts |= {"tie_word_embeddings": True, "enable_moe_block": True}
    whole = save_seeing_model(tmp_path, "gemma4", **experts)
    rows, told = make_rows(form_of(tmp_path)), partial(whole_logprobs, whole, tmp_path)
    as_the_whole(load_model(tmp_path, with_tower=True), whole, rows, told, True, True)


@pytest.mark.parametrize("kind", tried(FAMILIES))
def test_a_critic_sees_what_the_whole_model_does(tmp_path, kind):
    whole = save_seeing_model(tmp_path, kind, tie_word_embeddings=True)
    rows = make_rows(form_of(tmp_path))
    critic_as_the_whole(tmp_path, whole, rows, partial(whole_logits, whole, tmp_path))


@pytest.mark.parametrize("kind", tried(FAMILIES[1:]))
def test_the_engine_draws_what_the_whole_model_would(tmp_path, kind):
    whole = save_seeing_model(tmp_path, kind, tie_word_embeddings=True)
    told = partial(whole_logprobs, whole, tmp_path)
    prompts = zip(PROMPTS, IMAGES, strict=True)
    # Its whole takes these for parts of an image, too.
    ends = (TOKEN, *(len(NAMES) + n for n in range(5) if kind == "ovis2"))
    drawn = engine_as_the_whole(tmp_path, [*prompts], told, ends, rtol=1e-5)
    (one, said), (other, differs) = drawn[4], drawn[6]
    assert one.prompt == other.prompt  # of two images
    assert said.logprobs != differs.logprobs


@pytest.mark.parametrize("shown", [[], [noise(2, (9, 35))]])
@pytest.mark.parametrize("kind", tried([FAMILIES[1], *FAMILIES[-9:]]))
def test_what_follows_a_prompt_with_images_is_text_but_for_later_ones(tmp_path, kind, shown):
    """A later turn, whose tokens may be that of an image, which it drew."""
    save_seeing_model(tmp_path, kind, tie_word_embeddings=True)
    form, model = form_of(tmp_path), load_model(tmp_path)
    prompt, before = tuple(form.expanded(PROMPTS[0], IMAGES[0])), (9, TOKEN, 7, TOKEN)
    behind = form.expanded([TOKEN], packed(shown)) if shown else []
    begins = form.places(behind, packed(shown))
    later = [LaterImage(len(before) + begins[0][0], one) for one in shown]
    before += tuple(behind)
    attach_tower(model, tmp_path, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=256, max_sequences=8)
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=5)
    turn = Request(
        "1",
        (*prompt, *before),
        sampling,
        seed=1,
        images=packed([*unpacked(IMAGES[0]), *shown]),
        later=tuple(len(prompt) + one.start for one in later),
    )
    (drawn,) = generate(engine, [turn])
    row = Experience(
        prompts=[torch.tensor(prompt)],
        row_groups=torch.zeros(1, dtype=torch.int64),
        response_tokens=torch.tensor([*before, *drawn.tokens]),
        lengths=torch.tensor([len(before) + 5]),
        mask=torch.tensor([False] * len(before) + [True] * 5),
        rollout_logprobs=torch.zeros(len(before) + 5),
        images=[IMAGES[0]],
        later_images=[packed_later(later)],
    )
    trainer = load_model(tmp_path)
    use_packed_attention(trainer)
    head = PolicyHead(LogprobSettings(chunk_tokens=5))
    said = packed_pass(trainer, head, row).outputs[0][len(before) :]
    torch.testing.assert_close(torch.tensor(drawn.logprobs), said, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", tried(FAMILIES))
def test_angles_of_a_tower_are_not_rounded(tmp_path: Path, kind: str):
    save_seeing_model(tmp_path, kind)
    model = load_model(tmp_path)
    attach_tower(model, tmp_path, torch.bfloat16, torch.device("cpu"))
    tower = tower_of(model)
    assert tower is not None
    (seen,) = tower.encode([noise(1)])
    _, tokens = tower.form.tokens_of(noise(1))
    # Ovis2 has features for the tokens between tiles, too.
    seen = seen[[tokens[place] == TOKEN for place in tower.form.feature_places(TOKEN, tokens)]]
    with torch.no_grad():
        whole = whole_class(kind).from_pretrained(tmp_path, dtype=torch.bfloat16)
        pixels = pixels_of(tmp_path, [noise(1)])
        pixels["pixel_values"] = pixels["pixel_values"].bfloat16()
        told = whole.get_image_features(**pixels)
    wanted = [told.pooler_output, *(getattr(told, "deepstack_features", None) or ())]
    assert torch.equal(seen, torch.cat([torch.cat(list(one)) for one in wanted], dim=-1))


def test_an_image_smaller_than_a_token_of_lighton_is_one(tmp_path: Path) -> None:
    """transformers' processor makes half of one, on which its model fails."""
    save_seeing_model(tmp_path, "lighton_ocr")
    model = load_model(tmp_path)
    attach_tower(model, tmp_path, torch.float32, torch.device("cpu"))
    tower = tower_of(model)
    assert tower is not None
    files = [noise(1, (3, 3)), noise(2, (99, 7)), noise(3, (8, 8))]
    counts = [form_of(tmp_path).tokens(*form_of(tmp_path).size_of(one)) for one in files]
    assert [len(one) for one in tower.encode(files)] == [len(one) for one in counts] == [1, 8, 1]


def test_patches_lie_where_float32_says_whatever_their_type_is() -> None:
    """In SmolVLM of 2.2B a side has 27 patches, which transformers places by shares of it."""
    sizes = {"hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 0}
    sizes |= {"intermediate_size": 4, "image_size": 384, "patch_size": 14}
    text = {"hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 0, "vocab_size": 8}
    config = SmolVLMConfig(vision_config=sizes, text_config=text, scale_factor=3, pad_token_id=0)
    tower = TOWERS["smolvlm"](config).requires_grad_(False)
    pixels, whole = torch.zeros(1, 3, 384, 384), torch.ones(1, 27, 27, dtype=torch.bool)
    for dtype in (torch.float32, torch.bfloat16):
        embeddings = tower.to(dtype).vision_model.embeddings
        embeddings.patch_embedding.bias.zero_()
        (own,) = embeddings(pixels.to(dtype))
        (told,) = Idefics3VisionEmbeddings.forward(embeddings, pixels.to(dtype), whole)
        assert torch.equal(own, embeddings.position_embedding.weight)
        assert torch.equal(own, told) == (dtype == torch.float32)


@pytest.mark.parametrize(
    "size", [(16, 16), (3, 3), (40, 20), (9, 35), (500, 400), (1, 150), (99, 7)]
)
@pytest.mark.parametrize("kind", [FAMILIES[1], *FAMILIES[6:8]])
def test_tokens_are_counted_as_the_processor_makes_them(tmp_path: Path, kind, size) -> None:
    save_seeing_model(tmp_path, kind)
    processor = processor_of(tmp_path)
    seen = processor(images=[opened(image("red", size))], return_tensors="pt")
    _, down, across = seen["image_grid_thw"][0].tolist()
    sides = across * PATCH, down * PATCH
    assert form_of(tmp_path).size_of(image("red", size)) == sides
    settings = (tmp_path / "preprocessor_config.json").read_text()
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_form(tmp_path) is None
    newer = {"image_processor": json.loads(settings)}
    (tmp_path / "processor_config.json").write_text(json.dumps(newer))
    assert form_of(tmp_path).size_of(image("red", size)) == sides
    assert type(processor).from_pretrained(tmp_path).patch_size == processor.patch_size
    # Of two files transformers takes the newer one.
    smaller = {**json.loads(settings), "min_pixels": 64, "max_pixels": 256}
    smaller["size"] = {"shortest_edge": 64, "longest_edge": 256}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(smaller))
    assert form_of(tmp_path).size_of(image("red", size)) == sides
    assert type(processor).from_pretrained(tmp_path).size == processor.size
