"""Audios, videos, and these with images: trainer and engine compute what whole models do."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import omni_models
import pytest
from hearing_models import TOKEN, heard, hearing_logits, hearing_logprobs, save_hearing_model
from omni_models import SPEAKING, omni_logits, omni_logprobs, omni_prompts, save_omni_model
from padded_reference import as_the_whole, critic_as_the_whole, engine_as_the_whole, two_responses
from seeing_models import FILMED, form_of, save_seeing_model
from tiny_models import IMAGE, NAMES, VIDEO, noise
from torch import Tensor
from transformers import PreTrainedModel
from video_reference import FPS, frames_of, marks_of, whole_logprobs_of_videos

from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import packed
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rows.experience import joined

Prompts = list[tuple[list[int], bytes]]


class Kind(NamedTuple):
    save: Callable[..., PreTrainedModel]
    prompts: Callable[..., Prompts]  # of a form
    logprobs: Callable[..., Tensor]  # (response,)
    logits: Callable[..., Tensor] | None  # (response, vocabulary)
    ends: tuple[int, ...]  # tokens of what is shown, which transformers would take for more of it


def heard_prompts(_: MediaForm) -> Prompts:
    return [
        ([5, TOKEN, 7, 8, TOKEN, 9], heard((440, 0.31), (300, 1.0))),
        ([10, 11, 12], b""),
        ([TOKEN, 13], heard((900, 0.6))),
        ([TOKEN, 13], heard((200, 0.6))),
    ]


def filmed_prompts(form: ImageForm) -> Prompts:
    """Prompts of two videos, of an image and a video of three frames, and of nothing."""
    cells = [frames_of(4, (24, 16)), frames_of(4, (16, 32), 1), frames_of(3, (25, 33), 2)]
    videos = read_videos([{"video": one, "fps": FPS, "min_pixels": 1} for one in cells], form)
    first, second, third = videos
    return [
        ([5, *marks_of(form, first), 7, *marks_of(form, second), 9], packed([*first, *second])),
        (
            [NAMES.index(IMAGE), 6, *marks_of(form, third), 8],
            packed([noise(1, (40, 20)), *third]),
        ),
        ([10, 11, 12], b""),
    ]


def save_thinker(folder: Path, kind: str, **told: bool) -> PreTrainedModel:
    """A model whose towers stay as they are."""
    thinker = save_omni_model(folder, kind, **told)
    thinker.audio_tower.requires_grad_(False)
    thinker.visual.requires_grad_(False)
    return thinker


OMNI = {
    f"omni {kind}": Kind(
        partial(save_thinker, kind=kind),
        omni_prompts,
        omni_logprobs,
        omni_logits,
        (omni_models.TOKEN, omni_models.IMAGE, omni_models.VIDEO),
    )
    for kind in SPEAKING
}
VIDEOS = {
    f"videos of {kind}": Kind(
        partial(save_seeing_model, kind=kind, tie_word_embeddings=True),
        filmed_prompts,
        whole_logprobs_of_videos,
        None,
        (NAMES.index(IMAGE), NAMES.index(VIDEO)),
    )
    for kind in FILMED
}
AUDIOS = Kind(save_hearing_model, heard_prompts, hearing_logprobs, hearing_logits, (TOKEN,))
KINDS = {"audios": AUDIOS, **OMNI, **VIDEOS}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_the_packed_forward_is_that_of_the_whole_model(tmp_path: Path, name: str, share: bool):
    """Towers of videos learn too where prompts are shared."""
    kind, learns = KINDS[name], name in VIDEOS and share
    whole, form = kind.save(tmp_path), form_of(tmp_path)
    rows = two_responses(form, kind.prompts(form))
    later = [*range(4, rows.num_rows, 2), *range(5, rows.num_rows, 2)]
    rows = joined([rows.select(range(4)), rows.select(later)])
    model = load_model(tmp_path, with_tower=learns)
    as_the_whole(model, whole, rows, partial(kind.logprobs, whole, tmp_path), share, learns)


@pytest.mark.parametrize("name", ["audios", *OMNI])
def test_a_critic_sees_and_hears_what_the_whole_model_does(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    whole, form = kind.save(tmp_path), form_of(tmp_path)
    rows = two_responses(form, kind.prompts(form))
    critic_as_the_whole(tmp_path, whole, rows, partial(kind.logits, whole, tmp_path))


@pytest.mark.parametrize("name", [name for name in KINDS if name != next(iter(VIDEOS))])
def test_the_engine_draws_what_the_whole_model_would(tmp_path: Path, name: str) -> None:
    """A folder of an omni model also holds what speaks."""
    kind, speaks = KINDS[name], {"speaks": True} if name in OMNI else {}
    whole, rtol = kind.save(tmp_path, **speaks), 1e-5 if name == "audios" else 0.0
    told, prompts = partial(kind.logprobs, whole, tmp_path), kind.prompts(form_of(tmp_path))
    drawn = engine_as_the_whole(tmp_path, prompts, told, kind.ends, rtol)
    if name == "audios":
        (one, said), (other, differs) = drawn[4], drawn[6]
        assert one.prompt == other.prompt  # of two audios
        assert said.logprobs != differs.logprobs
