"""Which tokens stand for a picture, beside transformers' processors of texts and pictures."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from seeing_models import TILE, form_of, save_seeing_model
from tiny_models import NAMES, PATCH, PICTURE, picture
from transformers import (
    AutoTokenizer,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    Mistral3ForConditionalGeneration,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from ppojob_trainer.data.picture_forms import PictureForm, Wanted, why_shown_none
from ppojob_trainer.data.pictures import opened, packed

TOKEN = NAMES.index(PICTURE)
SIZES = [(16, 16), (3, 3), (40, 20), (9, 35), (500, 400), (3, 150), (99, 7), (33, 32), (64, 64)]


def of_internvl(folder: Path) -> Any:
    class Processor(InternVLProcessor):
        """transformers' own, without its class of videos, which wants torchvision."""

        def check_argument_for_proper_class(self, *_: object) -> None: ...

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = {"start": "<img>", "end": "</img>", "context": PICTURE}
    for name, token in tokens.items():
        setattr(tokenizer, f"{name}_image_token", token)
        setattr(tokenizer, f"{name}_image_token_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.video_token = "<video>"
    images = GotOcr2ImageProcessorPil.from_pretrained(folder)
    return Processor(images, tokenizer, image_seq_length=4)


class OfMistral:
    """What transformers' `PixtralProcessor` makes, which is not loaded without torchvision.

    Source: its `replace_image_token`; pixels are those of its class for PIL.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._images = PixtralImageProcessorPil.from_pretrained(folder)

    def __call__(self, text: str, images: list[Image.Image]) -> dict[str, list[list[int]]]:
        unit = 2 * PATCH
        for one in images:
            (sides,) = self._images(images=[one], patch_size=unit)["image_sizes"]
            down, across = (side // unit for side in sides)
            tokens = [["[IMG]"] * across + ["[IMG_BREAK]"]] * down
            tokens = [item for line in tokens for item in line]
            tokens[-1] = "[IMG_END]"
            text = text.replace(PICTURE, "".join(tokens), 1)
        return {"input_ids": [self.tokenizer.encode(text.replace("[IMG]", PICTURE))]}


PROCESSORS: dict[str, tuple[type, Callable[[Path], Any]]] = {
    "internvl": (InternVLForConditionalGeneration, of_internvl),
    "mistral": (Mistral3ForConditionalGeneration, OfMistral),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind."""
    found = {name: tmp_path_factory.mktemp(name) for name in PROCESSORS}
    for name, (kind, _) in PROCESSORS.items():
        save_seeing_model(found[name], kind)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_prompt_has_the_tokens_of_the_processor(
    folders: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    form, processor = form_of(folders[name]), PROCESSORS[name][1](folders[name])
    shown, text = [picture("red", size), picture("blue", (40, 20))], f"a{PICTURE}b{PICTURE}c"
    told = processor(text=text, images=[opened(one) for one in shown])["input_ids"][0]
    ids = form.expanded(processor.tokenizer.encode(text), packed(shown))
    assert ids == told
    places = form.places(ids, packed(shown))
    assert [one for own in places for one in own] == [
        place for place, id_ in enumerate(ids) if id_ == TOKEN
    ]
    behind = form.expanded([TOKEN], packed(shown[1:]))
    drawn = [*ids, TOKEN, 9, *behind]  # a token of the model's own, which is text
    later = len(ids) + 2 + behind.index(TOKEN)
    assert form.places(drawn, packed([*shown, shown[1]]), [later])[2][0] == later


@pytest.mark.parametrize("size", SIZES)
def test_lines_are_as_large_as_is_wanted(folders: dict[str, Path], size: tuple[int, int]) -> None:
    """Up to a token of a side, within what the processor makes of it."""
    form, unit = form_of(folders["mistral"]), 2 * PATCH
    width, height = form.sides(form.fitted(picture("red", size), Wanted(most=8 * unit**2)))
    assert (width - unit) * (height - unit) <= 8 * unit**2
    width, height = form.sides(form.fitted(picture("red", size), Wanted(least=8 * unit**2)))
    assert width * height >= 8 * unit**2 or max(width, height) == 16 * PATCH


@pytest.mark.parametrize("size", SIZES)
def test_tiles_are_bounded_by_pixels(folders: dict[str, Path], size: tuple[int, int]) -> None:
    form, file = form_of(folders["internvl"]), picture("red", size)
    few = form.fitted(file, Wanted(most=2 * TILE**2))
    assert math.prod(form.sides(few)) <= 2 * TILE**2
    assert form.sides(few) == opened(few).size or few == file
    assert form.fitted(file, Wanted(most=10**6)) == file


def test_a_folder_without_the_tokens_around_pictures_is_shown_none(tmp_path: Path) -> None:
    for kind, _ in PROCESSORS.values():
        save_seeing_model(tmp_path, kind)
        (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
        assert PictureForm.read(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        ("internvl", "preprocessor_config.json", {"size": TILE}),
        ("internvl", "preprocessor_config.json", {"size": {"height": TILE, "width": 2 * TILE}}),
        ("internvl", "preprocessor_config.json", {"max_patches": "4"}),
        ("internvl", "processor_config.json", {"image_processor": "GotOcr2ImageProcessor"}),
        ("internvl", "config.json", {"downsample_ratio": 0.3}),
        ("internvl", "config.json", {"vision_config": {"patch_size": [PATCH]}}),
        ("mistral", "preprocessor_config.json", {"size": {"height": 64, "width": 64}}),
        ("mistral", "config.json", {"spatial_merge_size": 0}),
    ],
)
def test_a_folder_with_other_settings_is_shown_none(
    folders: dict[str, Path], tmp_path: Path, name: str, file: str, changes: dict[str, object]
) -> None:
    """Those that transformers refuses, or reads in another way than is known here."""
    folder = shutil.copytree(folders[name], tmp_path / name)
    path = folder / file
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**said, **changes}))
    assert PictureForm.read(folder) is None


def test_why_a_folder_is_shown_none_names_its_processor(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["internvl"], tmp_path / "model")
    path = folder / "preprocessor_config.json"
    (folder / "processor_config.json").unlink(missing_ok=True)
    assert why_shown_none(folder) == ""
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_patches": "4"}))
    assert "has a GotOcr2ImageProcessor" in why_shown_none(folder)
    path.write_text(json.dumps({"image_processor_type": "SiglipImageProcessor"}))
    assert "is a SiglipImageProcessor, and those are known whose names" in why_shown_none(folder)
    path.unlink()
    assert f"has neither a processor_config.json nor a {path.name}" in why_shown_none(folder)
