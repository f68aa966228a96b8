"""Which tokens stand for an image, beside transformers' processors of texts and images."""

import json
import math
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from image_processors import PROCESSORS, OfGemma4, of_gemma, of_smolvlm
from PIL import Image
from seeing_models import TILE, form_of, save_seeing_model
from tiny_models import (
    BEGIN_SQUARE,
    CROPS,
    END_SQUARE,
    IMAGE,
    NAMES,
    PATCH,
    SPLITS,
    image,
    noise,
    save_tokenizer,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.image_form import RequestedSize
from ppojob_trainer.data.media.image_forms import read_form, why_no_media
from ppojob_trainer.data.media.image_squares import Lfm2VlImages
from ppojob_trainer.data.media.images import opened, packed
from ppojob_trainer.models.vision_tower import tower_inputs

TOKEN = NAMES.index(IMAGE)
SIZES = [(16, 16), (3, 3), (40, 20), (9, 35), (500, 400), (3, 150), (99, 7), (33, 32), (64, 64)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in PROCESSORS}
    for kind, folder in found.items():
        save_seeing_model(folder, kind)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_prompt_has_the_tokens_of_the_processor(folders, name: str, size):
    form, processor = form_of(folders[name]), PROCESSORS[name](folders[name])
    mark = {"gemma3": BEGIN_SQUARE} | dict.fromkeys(("aya_vision", "ovis2"), "<image>")
    mark = mark.get(name, IMAGE)
    shown, text = [image("red", size), image("blue", (40, 20))], f"a{mark}b{mark}c"
    told = processor(text=text, images=[opened(one) for one in shown])["input_ids"][0]
    ids = form.expanded(processor.tokenizer.encode(form.rewritten(text)), packed(shown))
    told = [int(id_) for id_ in told]
    if name == "lighton_ocr" and len(told) < len(ids):
        # transformers makes less than a token of it, on which its model fails.
        told[1:1] = [TOKEN] * (max(form.size_of(shown[0])) // (2 * PATCH))
    assert ids == told
    places = form.places(ids, packed(shown))
    first = len(NAMES)  # of the tokens around tiles, which have features in Ovis2
    known = {TOKEN, *(range(first, first + 5) if name == "ovis2" else ())}
    assert [one for own in places for one in own] == [
        place for place, id_ in enumerate(ids) if id_ in known
    ]
    behind = form.expanded([TOKEN], packed(shown[1:]))
    drawn = [*ids, TOKEN, 9, *behind]  # a token of the model's own, which is text
    later = len(ids) + 2 + form.places(behind, packed(shown[1:]))[0][0]
    assert form.places(drawn, packed([*shown, shown[1]]), [later])[2][0] == later


@pytest.mark.parametrize("size", SIZES)
def test_lines_are_as_large_as_is_wanted(folders: dict[str, Path], size: tuple[int, int]) -> None:
    """Up to a token of a side, within what the processor makes of it."""
    form, unit = form_of(folders["mistral3"]), 2 * PATCH
    width, height = form.size_of(
        form.resized(image("red", size), RequestedSize(max_pixels=8 * unit**2))
    )
    assert (width - unit) * (height - unit) <= 8 * unit**2
    width, height = form.size_of(
        form.resized(image("red", size), RequestedSize(min_pixels=8 * unit**2))
    )
    assert width * height >= 8 * unit**2 or max(width, height) == 16 * PATCH


def save_lfm2(folder: Path) -> Lfm2VlImages:
    """What the files of LFM2.5-VL-1.6B say of images."""
    save_tokenizer(folder, names=[*NAMES, *SPLITS])
    files = {
        "config.json": {"image_token_id": TOKEN, "vision_config": {"patch_size": 16}},
        "processor_config.json": {
            "image_processor": {"image_processor_type": "Lfm2VlImageProcessorFast"}
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    form = form_of(folder)
    assert isinstance(form, Lfm2VlImages)
    return form


def test_images_are_cut_as_by_the_processor_of_lfm2(tmp_path: Path) -> None:
    """Tiles, and tokens of the whole, which it needs torchvision to say."""
    form = save_lfm2(tmp_path)
    for size, tiles, whole in (
        ((40, 20), (0, 0), (12, 6)),
        ((640, 480), (0, 0), (18, 13)),
        ((512, 1024), (0, 0), (11, 22)),
        ((1000, 1000), (2, 2), (16, 16)),
        ((1600, 1200), (3, 2), (18, 13)),
        ((1920, 1080), (4, 2), (21, 12)),
        ((300, 2000), (1, 7), (6, 41)),
        ((3000, 200), (10, 1), (61, 4)),
        ((1250, 1000), (3, 3), (17, 14)),
    ):
        assert (form.grid(*size), form.whole(*size)) == (tiles, whole)
    ids = form.expanded([TOKEN], packed([image("red", (1600, 1200))]))
    assert ids.count(TOKEN) == 6 * 256 + 18 * 13
    assert len(ids) == ids.count(TOKEN) + 6 + 3


@pytest.mark.parametrize("size", [(40, 20), (1300, 900), (500, 1500)])
def test_tiles_of_lfm2_have_the_pixels_of_the_image(tmp_path: Path, size) -> None:
    """Those of Pillow, to 1 of 255, in the order of the tokens."""
    form, image = save_lfm2(tmp_path), opened(noise(1, size))
    inputs = tower_inputs(image, form)
    (columns, rows), (across, down) = form.grid(*size), form.whole(*size)
    side, found = form.tile, []
    if rows:
        large = image.resize((columns * side, rows * side), Image.Resampling.BILINEAR)
        places = [(x * side, y * side) for y in range(rows) for x in range(columns)]
        found = [large.crop((x, y, x + side, y + side)) for x, y in places]
    found.append(image.resize((across * form.unit, down * form.unit), Image.Resampling.BILINEAR))
    parts = inputs["pixel_values"].split(inputs["spatial_shapes"].prod(dim=-1).tolist())
    for part, shape, own in zip(parts, inputs["spatial_shapes"].tolist(), found, strict=True):
        pixels = part.view(*shape, 16, 16, 3).transpose(1, 2).reshape(own.height, own.width, 3)
        expected = torch.from_numpy(np.array(own)) / 127.5 - 1
        torch.testing.assert_close(pixels, expected, rtol=0, atol=1.01 / 127.5)


def test_images_of_lfm2_may_be_made_smaller(tmp_path: Path) -> None:
    form, file = save_lfm2(tmp_path), image("red", (1600, 1200))
    assert form.resized(file, RequestedSize(max_pixels=10**7)) == file
    small = form.resized(file, RequestedSize(max_pixels=400_000))
    assert form.size_of(small) == opened(small).size == (730, 547)
    assert form.grid(*opened(small).size) == (0, 0)
    assert form.size_of(form.resized(file, RequestedSize(min_pixels=4 * 1600 * 1200))) == (
        3200,
        2400,
    )


@pytest.mark.parametrize("size", SIZES)
def test_tiles_are_bounded_by_pixels(folders: dict[str, Path], size: tuple[int, int]) -> None:
    form, file = form_of(folders["internvl"]), image("red", size)
    few = form.resized(file, RequestedSize(max_pixels=2 * TILE**2))
    assert math.prod(form.size_of(few)) <= 2 * TILE**2
    assert form.size_of(few) == opened(few).size or few == file
    assert form.resized(file, RequestedSize(max_pixels=10**6)) == file


@pytest.mark.processes
@pytest.mark.parametrize("said", ["\n\n{}\n", "{}", "{}\n{}"])
def test_blank_lines_around_a_square_are_merged_as_by_the_processor(tmp_path: Path, said: str):
    """A tokenizer of the hub has tokens for two and more ends of lines."""
    save_seeing_model(tmp_path, "gemma3")
    path = tmp_path / "tokenizer.json"
    body = json.loads(path.read_text())
    merged = body["model"]["vocab"] | {"\n\n": 200, "\n\n\n": 201, "\n\n\n\n": 202}
    merges = [["\n", "\n"], ["\n\n", "\n"], ["\n\n", "\n\n"]]
    body["model"] |= {"vocab": merged, "merges": merges}
    path.write_text(json.dumps(body))
    parts: list[dict[str, str]] = [{"type": "text", "text": said.partition("{}")[0]}]
    for text in said.split("{}")[1:]:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    shown, messages = [image("red")] * said.count("{}"), [{"role": "user", "content": parts}]
    processor = of_gemma(tmp_path)
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False)
    told = processor(text=text, images=[opened(one) for one in shown])["input_ids"][0]
    with ChatTokenizer(tmp_path) as chat:
        (ids,) = chat.encode_chats([messages], open_turn=False)
        assert chat.images is not None
        assert chat.images.expanded(ids, packed(shown)) == told
        literal = [{"role": "user", "content": f"a{BEGIN_SQUARE}"}]
        (ids,) = chat.encode_chats([literal], open_turn=False)  # without an image it is text
        assert IMAGE not in chat.decode(ids, skip_special_tokens=False)
    assert {201, 202} & {*told}  # which text makes that is put around it


def test_squares_of_the_hub_are_of_896_pixels_and_256_tokens(tmp_path: Path) -> None:
    """What the files of google/gemma-3-4b-it say of images."""
    tower = {"image_size": 896, "patch_size": 14, "model_type": "siglip_vision_model"}
    marks = {"boi_token_index": 255_999, "eoi_token_index": 256_000, "image_token_index": 262_144}
    texts = (BEGIN_SQUARE, END_SQUARE, "<image_soft_token>")
    files: dict[str, dict[str, object]] = {
        "config.json": {"mm_tokens_per_image": 256, "vision_config": tower, **marks},
        "preprocessor_config.json": {
            "do_pan_and_scan": None,
            "do_resize": True,
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256,
            "size": {"height": 896, "width": 896},
        },
        "processor_config.json": {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        "tokenizer.json": {
            "added_tokens": [
                {"id": id_, "content": text}
                for id_, text in zip(marks.values(), texts, strict=True)
            ]
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    form = form_of(tmp_path)
    assert form.size_of(image("red", (40, 20))) == (896, 896)
    assert form.expanded([2, 262_144], packed([image("red")])) == [2, *[262_144] * 256]
    said = "<start_of_image><image_soft_token><end_of_image>"
    assert form.rewritten("user\n<start_of_image>a") == f"user\n\n\n{said}\n\na"


JOINED = {"patch_size": 48, "pooling_kernel_size": 1}


def save_gemma4(folder: Path, **said: object) -> None:
    """What files of Gemma 4 say of images; beside the usual, that is of its text or processor."""
    kind = str(said.get("image_processor_type", "Gemma4ImageProcessor"))
    tower = {"patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10_240}
    if "Unified" in kind:
        tower["mm_posemb_size"] = 1_120
        del tower["position_embedding_size"]
    ids = {"<|image>": 255_999, "<|image|>": 258_880, "<image|>": 258_882}
    marks = [{"id": id_, "content": text} for text, id_ in ids.items()]
    text = {"sliding_window": 1_024, "use_bidirectional_attention": said.get("attention", "vision")}
    usual = {"patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280, "size": None}
    processor = {**usual, "do_resize": True, "image_processor_type": kind, **said}
    folder.mkdir(exist_ok=True)
    for name, content in {
        "config.json": {"vision_config": tower, "text_config": text},
        "processor_config.json": {"image_processor": processor, "image_seq_length": 280},
        "tokenizer.json": {"added_tokens": marks},
    }.items():
        (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["Gemma4ImageProcessor", "Gemma4UnifiedImageProcessor"])
def test_images_of_gemma_4_of_the_hub_have_280_tokens_at_most(tmp_path: Path, kind: str) -> None:
    save_gemma4(tmp_path, image_processor_type=kind)
    form = form_of(tmp_path)
    assert form.size_of(image("red", (1_000, 500))) == (1_104, 528)
    tokens = [255_999, *[258_880] * 23 * 11, 258_882]
    assert form.expanded([2, 258_880], packed([image("red", (1_000, 500))])) == [2, *tokens]
    assert form.sees_ahead
    assert form.processor_arguments == (JOINED if "Unified" in kind else {})


def test_models_that_differ_in_what_tokens_see_take_images_alike(tmp_path: Path) -> None:
    save_gemma4(tmp_path / "e4b", attention=None)
    save_gemma4(tmp_path / "31b")
    save_gemma4(tmp_path / "fewer", max_soft_tokens=140)
    small, large, fewer = (form_of(tmp_path / name) for name in ("e4b", "31b", "fewer"))
    assert small == large != fewer
    assert (small.sees_ahead, large.sees_ahead) == (False, True)


@pytest.mark.parametrize(
    ("said", "is_shown"),
    [
        ({"max_soft_tokens": 560}, True),
        ({"max_soft_tokens": 1_120}, False),  # longer than its window
        ({"max_soft_tokens": 1_120, "attention": None}, True),
        ({"max_soft_tokens": 300}, False),
        ({"patch_size": 8}, False),
        ({"pooling_kernel_size": 2}, False),
        ({"do_resize": False}, False),
    ],
)
def test_other_settings_of_gemma_4_are_judged(tmp_path: Path, said, is_shown: bool) -> None:
    save_gemma4(tmp_path, **said)
    assert (read_form(tmp_path) is not None) == is_shown == (why_no_media(tmp_path) == "")


def test_images_keep_their_shape_as_by_the_processor(folders: dict[str, Path]) -> None:
    """Also those that are longer than they may have tokens."""
    sizes, form = Random(3), form_of(folders["gemma4"])
    images = OfGemma4(folders["gemma4"]).images
    sides = [(sizes.randint(1, 90), sizes.randint(1, 90)) for _ in range(60)]
    for size in [*sides, (1, 500), (700, 3), (1, 70), (71, 1)]:
        file = image("red", size)
        made = images(images=[opened(file)], return_tensors="pt")
        positions = made["image_position_ids"][0]
        across, down = (positions.amax(dim=0) + 1).tolist()
        assert form.size_of(file) == (across * PATCH, down * PATCH)
        assert form.resized(file, RequestedSize(max_pixels=8)) == file
        written = form.tokens(*form.size_of(file))
        assert written.count(TOKEN) == made["num_soft_tokens_per_image"][0]


def test_images_of_any_shape_are_cut_as_by_the_processor(folders, tmp_path: Path):
    """Also where the longest side is no multiple of a square's."""
    folder, sizes = shutil.copytree(folders["smolvlm"], tmp_path / "model"), Random(3)
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    for longest, is_cut in ((4 * TILE, True), (61, True), (5 * TILE, False)):
        settings |= {"size": {"longest_edge": longest}, "do_image_splitting": is_cut}
        path.write_text(json.dumps(settings))
        form, processor = form_of(folder), SmolVLMImageProcessorPil.from_pretrained(folder)
        for _ in range(60):
            image = Image.new("RGB", (sizes.randint(1, 99), sizes.randint(1, 99)))
            made = processor(images=[image], return_row_col_info=True, return_tensors="pt")
            across, down = (side // TILE for side in form.target_size(*image.size))
            cut = [down, across] if max(across, down) > 1 else [0, 0]
            assert [made["rows"][0][0], made["cols"][0][0]] == cut
            squares = down * across + 1 if cut[0] else 1
            assert made["pixel_values"].shape == (1, squares, 3, TILE, TILE)
            written = form.tokens(across * TILE, down * TILE)
            assert written.count(TOKEN) == 4 * squares


def test_blank_lines_between_squares_are_merged_as_by_the_processor(tmp_path: Path) -> None:
    """Tokenizers of the hub have a token for two ends of lines, and may lack names of squares."""
    save_seeing_model(tmp_path, "smolvlm")
    path = tmp_path / "tokenizer.json"
    body = json.loads(path.read_text())
    body["model"] |= {"vocab": body["model"]["vocab"] | {"\n\n": 200}, "merges": [["\n", "\n"]]}
    name, other = "<row_2_col_1>", tmp_path / "tokenizer_config.json"
    body["added_tokens"] = [one for one in body["added_tokens"] if one["content"] != name]
    path.write_text(json.dumps(body))
    other.write_text(other.read_text().replace(name, "<row_2_col_2>"))
    form, processor, file = form_of(tmp_path), of_smolvlm(tmp_path), image("red")
    told = processor(text=f"\n{IMAGE}\n", images=[opened(file)])["input_ids"][0]
    assert form.expanded(processor.tokenizer.encode(f"\n{IMAGE}\n"), packed([file])) == told
    assert told.count(200) == 1


def test_crops_of_the_hub_are_up_to_17_of_64_tokens(tmp_path: Path) -> None:
    """What the files of SmolVLM2-500M say of images; a small one is enlarged."""
    save_tokenizer(tmp_path, names=[*NAMES, *CROPS])
    tower = {"image_size": 512, "patch_size": 16, "model_type": "smolvlm_vision"}
    files = {
        "config.json": {"scale_factor": 4, "image_token_id": TOKEN, "vision_config": tower},
        "preprocessor_config.json": {
            "do_image_splitting": True,
            "do_pad": True,
            "do_resize": True,
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 512},
            "size": {"longest_edge": 2048},
            "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}},
        },
        "processor_config.json": {"image_seq_len": 64, "processor_class": "SmolVLMProcessor"},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    form = form_of(tmp_path)
    assert form.size_of(image("red", (40, 20))) == (2048, 1024)
    assert form.size_of(image("red")) == (2048, 2048)
    written = form.tokens(2048, 2048)
    assert written.count(TOKEN) == 17 * 64
    assert written.count(len(NAMES)) == 18  # around squares
    assert form.video is None


def test_squares_have_one_size(folders: dict[str, Path]) -> None:
    form, file = form_of(folders["gemma3"]), image("red", (40, 20))
    assert form.resized(file, RequestedSize(max_pixels=8, size=(8, 8))) == file
    assert form.size_of(file) == (TILE, TILE)


def test_a_folder_without_the_tokens_around_images_is_shown_none(tmp_path: Path) -> None:
    for kind in PROCESSORS:
        save_seeing_model(tmp_path, kind)
        (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
        assert read_form(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        ("internvl", "preprocessor_config.json", {"size": TILE}),
        ("internvl", "preprocessor_config.json", {"size": {"height": TILE, "width": 2 * TILE}}),
        ("internvl", "preprocessor_config.json", {"max_patches": "4"}),
        ("internvl", "processor_config.json", {"image_processor": "GotOcr2ImageProcessor"}),
        ("internvl", "config.json", {"downsample_ratio": 0.3}),
        ("internvl", "config.json", {"vision_config": {"patch_size": [PATCH]}}),
        ("mistral3", "preprocessor_config.json", {"size": {"height": 64, "width": 64}}),
        ("mistral3", "config.json", {"spatial_merge_size": 0}),
        ("gemma3", "preprocessor_config.json", {"do_pan_and_scan": True}),
        ("gemma3", "preprocessor_config.json", {"do_resize": False}),
        ("gemma3", "preprocessor_config.json", {"size": {"height": TILE, "width": 2 * TILE}}),
        ("gemma3", "processor_config.json", {"image_seq_length": 9}),
        ("gemma3", "config.json", {"mm_tokens_per_image": 5}),
        ("gemma3", "config.json", {"image_token_index": 4000}),
        ("gemma3", "config.json", {"text_config": {"sliding_window": 3}}),
        ("smolvlm", "preprocessor_config.json", {"do_resize": False}),
        ("smolvlm", "preprocessor_config.json", {"size": {"height": TILE, "width": TILE}}),
        ("smolvlm", "preprocessor_config.json", {"max_image_size": {"longest_edge": 2 * TILE}}),
        ("smolvlm", "preprocessor_config.json", {"size": {"longest_edge": 5000}}),
        ("smolvlm", "processor_config.json", {"image_seq_len": 9}),
        ("smolvlm", "config.json", {"scale_factor": 3}),
        ("smolvlm", "config.json", {"image_token_id": 4000}),
        ("lighton_ocr", "preprocessor_config.json", {"patch_size": 3}),
        ("lighton_ocr", "preprocessor_config.json", {"patch_size": {"height": 4, "width": 8}}),
        ("lighton_ocr", "config.json", {"image_token_id": 4000}),
        ("lfm2_vl", "preprocessor_config.json", {"encoder_patch_size": 8}),
        ("lfm2_vl", "preprocessor_config.json", {"min_tiles": 1}),
        ("lfm2_vl", "preprocessor_config.json", {"tile_size": 12}),
        ("lfm2_vl", "preprocessor_config.json", {"resample": 1}),
        ("lfm2_vl", "config.json", {"downsample_factor": 4}),
        ("lfm2_vl", "config.json", {"image_token_id": 4000}),
        ("ovis2", "config.json", {"visual_indicator_token_ids": [1, 2, 3, 4, 5]}),
        ("ovis2", "processor_config.json", {"image_seq_length": 9}),
        ("ovis2", "preprocessor_config.json", {"use_covering_area_grid": False}),
        ("aya_vision", "config.json", {"downsample_factor": 3}),
        ("aya_vision", "config.json", {"image_token_index": 4000}),
        ("llava", "preprocessor_config.json", {"size": {"shortest_edge": 2 * TILE}}),
        ("llava", "preprocessor_config.json", {"do_center_crop": False}),
        ("llava", "preprocessor_config.json", {"image_processor_type": "LlavaNextImageProcessor"}),
        ("llava", "config.json", {"vision_feature_select_strategy": "full"}),
        ("llava", "config.json", {"image_token_index": 4000}),
        ("llava_next", "preprocessor_config.json", {"image_grid_pinpoints": [[TILE, TILE]]}),
        ("llava_onevision", "config.json", {"image_grid_pinpoints": [[TILE, TILE + 1]]}),
        ("llava_onevision", "config.json", {"vision_aspect_ratio": "pad"}),
    ],
)
def test_a_folder_with_other_settings_is_shown_none(folders, tmp_path, name, file, changes):
    """Those that transformers refuses, or reads in another way than is known here."""
    folder = shutil.copytree(folders[name], tmp_path / name)
    path = folder / file
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**said, **changes}))
    assert read_form(folder) is None


def test_why_a_folder_is_shown_none_names_its_processor(folders: dict[str, Path], tmp_path: Path):
    folder = shutil.copytree(folders["internvl"], tmp_path / "model")
    path = folder / "preprocessor_config.json"
    (folder / "processor_config.json").unlink(missing_ok=True)
    assert why_no_media(folder) == ""
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_patches": "4"}))
    assert "has a GotOcr2ImageProcessor" in why_no_media(folder)
    path.write_text(json.dumps({"image_processor_type": "SiglipImageProcessor"}))
    assert "has a SiglipImageProcessor that is not supported" in why_no_media(folder)
    path.unlink()
    assert f"has neither a processor_config.json nor a {path.name}" in why_no_media(folder)
