"""Videos in prompts: what trainer and engine compute is what transformers' whole model does."""

from functools import partial

import pytest
import torch
from engine_phase import generate
from padded_reference import as_the_whole, two_responses
from seeing_models import FILMED, form_of, save_seeing_model
from tiny_models import NAMES, PICTURE, VIDEO, noise
from video_reference import FPS, frames_of, marks_of, whole_logprobs_of_videos

from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.pictures import packed
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.vision_tower import attach_tower
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams

TOKEN, CLIP = NAMES.index(PICTURE), NAMES.index(VIDEO)


def shown_by(form: PictureForm) -> list[tuple[list[int], bytes]]:
    """Prompts of two videos, of a picture and a video of three frames, and of nothing."""
    cells = [frames_of(4, (24, 16)), frames_of(4, (16, 32), 1), frames_of(3, (25, 33), 2)]
    videos = read_videos([{"video": one, "fps": FPS, "min_pixels": 1} for one in cells], form)
    drawn = noise(1, (40, 20))
    first, second, third = videos
    return [
        ([5, *marks_of(form, first), 7, *marks_of(form, second), 9], packed([*first, *second])),
        ([TOKEN, 6, *marks_of(form, third), 8], packed([drawn, *third])),
        ([10, 11, 12], b""),
    ]


@pytest.mark.parametrize(("share", "learns"), [(True, True), (False, False)])
@pytest.mark.parametrize("model_class", FILMED)
def test_the_packed_forward_is_that_of_the_whole_model(tmp_path, model_class, share, learns):
    whole = save_seeing_model(tmp_path, model_class, tie_word_embeddings=True)
    model, form = load_model(tmp_path, with_tower=learns), form_of(tmp_path)
    rows = two_responses(form, shown_by(form))
    logprobs = partial(whole_logprobs_of_videos, whole, tmp_path)
    as_the_whole(model, whole, rows, logprobs, share, learns)


@pytest.mark.parametrize("model_class", FILMED[1:])
def test_the_engine_draws_what_the_whole_model_would(tmp_path, model_class):
    whole = save_seeing_model(tmp_path, model_class, tie_word_embeddings=True)
    form, model = form_of(tmp_path), load_model(tmp_path)
    attach_tower(model, tmp_path, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=128, max_sequences=8)
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=9, stop_token_ids=(TOKEN, CLIP))
    requests = [
        Request(str(n), tuple(form.expanded(ids, shown)), sampling, seed=n, pictures=shown)
        for n, (ids, shown) in enumerate(shown_by(form))
    ]
    for request, row in zip(requests, generate(engine, requests), strict=True):
        with torch.no_grad():
            expected = whole_logprobs_of_videos(
                whole,
                tmp_path,
                torch.tensor(request.prompt),
                request.pictures,
                torch.tensor(row.tokens),
            )
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, rtol=0, atol=1e-5)
