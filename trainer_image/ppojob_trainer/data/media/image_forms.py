"""Image formats by the processors of model folders. Loads no torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.problem import printable
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.media.audio_form import MODELS, read_audio_form
from ppojob_trainer.data.media.image_files import (
    NEWER,
    OF_VIDEOS,
    PROCESSOR,
    of_thinker,
    read_json,
)
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_grids import (
    LIMITS,
    QWEN,
    Gemma4Images,
    MistralImages,
    QwenImages,
)
from ppojob_trainer.data.media.image_llava import LlavaImages, LlavaNextImages
from ppojob_trainer.data.media.image_ovis import OvisImages
from ppojob_trainer.data.media.image_settings import (
    Gemma3Settings,
    Gemma4Settings,
    Idefics3Settings,
    InternVlSettings,
    Lfm2VlSettings,
    LlavaSettings,
    MistralSettings,
    OvisSettings,
    QwenSettings,
)
from ppojob_trainer.data.media.image_squares import (
    Gemma3Images,
    Idefics3Images,
    InternVlImages,
    Lfm2VlImages,
)
from ppojob_trainer.data.media.media_form import MediaForm

_Read = Callable[[str, Any, Path], ImageForm | None]
_KINDS: Final[Mapping[str, tuple[_Read, type[msgspec.Struct]]]] = {
    **dict.fromkeys(LIMITS, (QwenImages.read, QwenSettings)),
    "GotOcr2": (InternVlImages.read, InternVlSettings),
    "Pixtral": (MistralImages.read, MistralSettings),
    "Gemma3": (Gemma3Images.read, Gemma3Settings),
    **dict.fromkeys(("Gemma4Image", "Gemma4UnifiedImage"), (Gemma4Images.read, Gemma4Settings)),
    **dict.fromkeys(("Idefics3", "SmolVLM"), (Idefics3Images.read, Idefics3Settings)),
    "Lfm2Vl": (Lfm2VlImages.read, Lfm2VlSettings),
    "Ovis2": (OvisImages.read, OvisSettings),
    **dict.fromkeys(("CLIPImage", "SiglipImage", "LlavaImage"), (LlavaImages.read, LlavaSettings)),
    **dict.fromkeys(
        ("LlavaNextImage", "LlavaOnevisionImage"), (LlavaNextImages.read, LlavaSettings)
    ),
}
"""Supported image processors, by prefix of their names."""


def _processor_of(folder: Path) -> tuple[Any, str, str | None]:
    """Return the settings, the class and the supported kind of a folder's image processor.

    The class is empty if there is no processor, the kind is None if it is not supported.
    """
    # In transformers' order.
    processor = read_json(folder / NEWER).get("image_processor") or read_json(folder / PROCESSOR)
    is_one = isinstance(processor, dict) and processor
    name = str(processor.get("image_processor_type", QWEN)) if is_one else ""
    return processor, name, next((one for one in _KINDS if name.startswith(one)), None)


def _hears(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type")) in MODELS


def read_form(folder: Path) -> MediaForm | None:
    """Return the media format of a Hugging Face model; None without images and audios."""
    config = of_thinker(read_json(folder / "config.json"))
    audio = read_audio_form(config, folder) if (hears := _hears(config)) else None
    if hears and "vision_config" not in config:
        return audio
    processor, _, kind = _processor_of(folder)
    if kind is None:
        return None
    read, settings = _KINDS[kind]
    if settings is not LlavaSettings and config.get("vision_feature_layer", -1) != -1:
        return None
    # In transformers' order.
    video = read_json(folder / NEWER).get("video_processor") or read_json(folder / OF_VIDEOS)
    sections = {"processor": processor, "video": video or processor}
    sections |= {"tower": config.get("vision_config"), "text": config.get("text_config") or {}}
    if not all(isinstance(one, dict) for one in sections.values()):
        return None
    flat = {f"{name}_{key}": value for name, one in sections.items() for key, value in one.items()}
    try:
        form = read(kind, msgspec.convert({**config, **flat}, settings), folder)
    except msgspec.ValidationError:
        return None
    if not hears:
        return form
    return replace(form, of_audios=audio) if audio and isinstance(form, QwenImages) else None


def why_no_media(folder: Path) -> str:
    """Return why a model with a tower gets no images or audios; empty if it gets them."""
    _, name, known = _processor_of(folder)
    config = of_thinker(read_json(folder / "config.json"))
    hears = _hears(config)
    if not (name or hears or "vision_config" in config) or read_form(folder) is not None:
        return ""
    if hears and read_audio_form(config, folder) is None:
        return f"{folder} has no {PROCESSOR} with supported settings of a WhisperFeatureExtractor"
    if not name:
        return f"{folder} has neither a {NEWER} nor a {PROCESSOR} with an image processor"
    wrong = "" if known else f", and the supported processors begin with {', '.join(_KINDS)}"
    return f"{folder} has a {printable(name)} that is not supported with its settings{wrong}"


def why_no_images(spec: PPOJobSpec) -> Callable[[str], str]:
    """Return a function: data source -> why its rows cannot have images; empty if they can.

    Every other model that reads the policy's tokens must take images as the policy does.
    """
    form = read_form(Path(spec.model.path))
    forms = [read_form(Path(path)) for path in spec.reference_paths]
    other = next((one for one in spec.critic_paths if read_form(Path(one)) != form), None)

    def why(data_source: str) -> str:
        if spec.data.teacher_prompt_key is not None or spec.algorithm.reprompt is not None:
            return "not in this version if the teacher has its own prompts"
        if is_drawn_causally(spec, form):
            why = "bidirectional attention in images, as in this model, is not tested with vLLM"
            return f"{why} on GPUs: use spec.rollout.engine: huggingface"
        if other is not None:
            return f"{other} of spec.critic takes none, or not as the policy"
        number = 0 if spec.reference is None else spec.reference.number_for(data_source)
        if number is None or forms[number] == form:
            return ""
        return f"{spec.reference_paths[number]} of spec.reference takes none, or not as the policy"

    return why


def all_take_images(spec: PPOJobSpec) -> bool:
    """Whether the policy and all other models that read its tokens take images alike."""
    form = read_form(Path(spec.model.path))
    readers = [*spec.critic_paths, *spec.reference_paths]
    if not isinstance(form, ImageForm) or is_drawn_causally(spec, form):
        return False
    return all(read_form(Path(path)) == form for path in readers)


def is_drawn_causally(spec: PPOJobSpec, form: MediaForm | None) -> bool:
    """Whether vLLM on GPUs generates, with causal attention where the model's is bidirectional."""
    if form is None or not form.sees_ahead or spec.algorithm.given or spec.rollout.replay:
        return False
    role = spec.roles.rollout or spec.roles.actor_rollout
    return spec.rollout.engine == "vllm" and role.gpus_per_replica > 0
