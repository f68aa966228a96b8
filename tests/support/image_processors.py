"""transformers' processors of texts and images, with which ours are compared."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from seeing_models import TILE, form_of
from tiny_models import AROUND_POOLED, BEGIN_SQUARE, END_SQUARE, IMAGE, PATCH, SPLITS, UNUSED
from transformers import (
    AutoTokenizer,
    AyaVisionProcessor,
    Gemma3Processor,
    Idefics3Processor,
    InternVLProcessor,
    Lfm2VlProcessor,
    LightOnOcrProcessor,
    LlavaNextProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    Ovis2Processor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
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
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil


def of_internvl(folder: Path) -> Any:
    class Processor(InternVLProcessor):
        """transformers' own, without its class of videos, which wants torchvision."""

        def check_argument_for_proper_class(self, *_: object) -> None: ...

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = {"start": "<img>", "end": "</img>", "context": IMAGE}
    for name, token in tokens.items():
        setattr(tokenizer, f"{name}_image_token", token)
        setattr(tokenizer, f"{name}_image_token_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.video_token = "<video>"
    images = GotOcr2ImageProcessorPil.from_pretrained(folder)
    return Processor(images, tokenizer, image_seq_length=4)


class OfMistral:
    """`PixtralProcessor`, not loaded without torchvision, by its `replace_image_token` and PIL."""

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
            text = text.replace(IMAGE, "".join(tokens), 1)
        return {"input_ids": [self.tokenizer.encode(text.replace("[IMG]", IMAGE))]}


def of_gemma(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, token in {"boi": BEGIN_SQUARE, "eoi": END_SQUARE, "image": IMAGE}.items():
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    return Gemma3Processor(Gemma3ImageProcessorPil.from_pretrained(folder), tokenizer, None, 4)


class OfGemma4:
    """`Gemma4Processor`, not loaded without torchvision, by its `replace_image_token` and PIL."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.images = Gemma4ImageProcessorPil.from_pretrained(folder)

    def __call__(self, text: str, images: list[Image.Image]) -> dict[str, list[list[int]]]:
        begin, end = AROUND_POOLED
        *parts, last = text.split(IMAGE)
        counts = self.images(images=images)["num_soft_tokens_per_image"]
        shown = [f"{begin}{IMAGE * count}{end}" for count in counts]
        text = "".join(one for pair in zip(parts, shown, strict=True) for one in pair) + last
        return {"input_ids": [self.tokenizer.encode(text)]}


def of_idefics(folder: Path, images: Any = Idefics3ImageProcessorPil) -> Any:
    """Of SmolVLM too, whose own wants a package for videos; with another token of images."""

    class Processor(Idefics3Processor):
        def check_argument_for_proper_class(self, *_: object) -> None: ...

        def _check_special_mm_tokens(self, *_: object, **__: object) -> None: ...

    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = Processor(images.from_pretrained(folder), tokenizer, image_seq_len=4)
    processor.image_token = IMAGE
    return processor


def of_smolvlm(folder: Path) -> Any:
    return of_idefics(folder, SmolVLMImageProcessorPil)


def of_lighton(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, token in zip(("image", "image_break", "image_end"), (IMAGE, *UNUSED), strict=True):
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))

    class Processor(LightOnOcrProcessor):
        def check_argument_for_proper_class(self, *_: object) -> None: ...

    return Processor(PixtralImageProcessorPil.from_pretrained(folder), tokenizer, PATCH)


class OfLfm2:
    """`Lfm2VlProcessor`, without torchvision, by the tiles of the form, which are tested apart."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer, self.form = AutoTokenizer.from_pretrained(folder), form_of(folder)

    def __call__(self, text: str, images: list[Image.Image]) -> dict[str, list[list[int]]]:
        form, maker = self.form, Lfm2VlProcessor.__new__(Lfm2VlProcessor)
        maker.image_token, maker.image_thumbnail_token = IMAGE, SPLITS[2]
        maker.image_start_token, maker.image_end_token = SPLITS[:2]
        *parts, text = text.split(IMAGE)
        for part, one in zip(reversed(parts), reversed(images), strict=True):
            columns, rows = form.grid(*one.size)
            sizes = [form.unit * side for side in form.whole(*one.size)[::-1]]
            counts = [
                maker._compute_tokens_per_tile(TILE, PATCH, 2),
                maker._compute_tokens_for_image(sizes, PATCH, 2),
            ]
            text = part + maker._build_image_tokens(rows, columns, *counts, True, True) + text
        return {"input_ids": [self.tokenizer.encode(text)]}


def of_ovis(folder: Path) -> Any:
    class Processor(Ovis2Processor):
        """With another token of images."""

        def check_argument_for_proper_class(self, *_: object) -> None: ...

        def _check_special_mm_tokens(self, *_: object, **__: object) -> None: ...

        def __call__(self, **named: Any) -> Any:
            return super().__call__(**named, return_tensors="pt")

        def replace_image_token(self, *given: Any, **named: Any) -> str:
            return super().replace_image_token(*given, **named).replace("<IMG_ATOM>", IMAGE)

    images, tokenizer = Ovis2ImageProcessorPil, AutoTokenizer.from_pretrained(folder)
    return Processor(images.from_pretrained(folder), tokenizer, image_seq_length=4)


def of_aya(folder: Path) -> Any:
    class Processor(AyaVisionProcessor):
        def check_argument_for_proper_class(self, *_: object) -> None: ...

    made_of = (
        GotOcr2ImageProcessorPil.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    return Processor(*made_of, 2 * PATCH, TILE, img_patch_token=IMAGE)


def of_llava(folder: Path, made: Any = LlavaProcessor, images: Any = CLIPImageProcessorPil) -> Any:
    """With the numbers that hub's folders give to processors of CLIP, or of SigLIP."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, token in {"image": IMAGE, "video": UNUSED[0]}.items():
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))

    class Processor(made):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, *_: object) -> None: ...

    numbers = {"patch_size": PATCH, "num_additional_image_tokens": 1}
    strategy = "default"
    if made is LlavaOnevisionProcessor:
        numbers, strategy = {"num_image_tokens": 16, "vision_aspect_ratio": "anyres_max_2"}, "full"
    made_of = images.from_pretrained(folder), tokenizer
    return Processor(*made_of, vision_feature_select_strategy=strategy, **numbers)


PROCESSORS: dict[str, Callable[[Path], Any]] = {
    "aya_vision": of_aya,
    "ovis2": of_ovis,
    "llava": of_llava,
    "llava_next": partial(of_llava, made=LlavaNextProcessor, images=LlavaNextImageProcessorPil),
    "llava_onevision": partial(
        of_llava, made=LlavaOnevisionProcessor, images=LlavaOnevisionImageProcessorPil
    ),
    "internvl": of_internvl,
    "mistral3": OfMistral,
    "gemma3": of_gemma,
    "gemma4": OfGemma4,
    "idefics3": of_idefics,
    "smolvlm": of_smolvlm,
    "lighton_ocr": of_lighton,
    "lfm2_vl": OfLfm2,
}
