"""Sounds in prompts: what trainer and engine compute is what transformers' whole model does."""

from functools import partial
from pathlib import Path

import pytest
import torch
from engine_phase import generate
from hearing_models import (
    TOKEN,
    heard,
    hearing_logits,
    hearing_logprobs,
    save_hearing_model,
    sound_form,
)
from padded_reference import as_the_whole, two_responses

from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.head import ValueHead
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.vision_tower import attach_tower
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams
from ppojob_trainer.rows.experience import Experience, joined

SOUNDS = [heard((440, 0.31), (300, 1.0)), b"", heard((900, 0.6)), heard((200, 0.6))]
PROMPTS = [[5, TOKEN, 7, 8, TOKEN, 9], [10, 11, 12], [TOKEN, 13], [TOKEN, 13]]


def make_rows(folder: Path) -> Experience:
    return two_responses(sound_form(folder), list(zip(PROMPTS, SOUNDS, strict=True)))


@pytest.mark.parametrize("share", [True, False])
def test_the_packed_forward_is_that_of_the_whole_model(tmp_path: Path, share: bool) -> None:
    whole = save_hearing_model(tmp_path)
    rows = make_rows(tmp_path)
    rows = joined([rows.select([0, 1, 2, 3]), rows.select([4, 6, 5, 7])])
    told = partial(hearing_logprobs, whole, tmp_path)
    as_the_whole(load_model(tmp_path), whole, rows, told, share, learns=False)


def test_a_critic_hears_what_the_whole_model_does(tmp_path: Path) -> None:
    """One whose head is a row of the output layer values a token by its logit."""
    whole = save_hearing_model(tmp_path)
    critic, rows = load_model(tmp_path, kind=CRITIC), make_rows(tmp_path)
    with torch.no_grad():
        critic.score.weight.copy_(whole.lm_head.weight[7:8])
    use_packed_attention(critic)
    with torch.no_grad():
        values = packed_pass(critic, ValueHead(), rows).outputs[0]
        responses = torch.split(rows.response_tokens, rows.lengths.tolist())
        logits = [
            hearing_logits(whole, tmp_path, rows.prompts[group], rows.pictures[group], response)
            for group, response in zip(rows.row_groups.tolist(), responses, strict=True)
        ]
    expected = torch.cat(logits)[:, 7]
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


def test_the_engine_draws_what_the_whole_model_would(tmp_path: Path) -> None:
    whole = save_hearing_model(tmp_path)
    form, model = sound_form(tmp_path), load_model(tmp_path)
    attach_tower(model, tmp_path, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=128, max_sequences=8)
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=9)
    requests = [
        Request(f"{n}/{sample}", tuple(form.expanded(ids, held)), sampling, sample, pictures=held)
        for n, (ids, held) in enumerate(zip(PROMPTS, SOUNDS, strict=True))
        for sample in range(2)
    ]
    drawn = generate(engine, requests)
    for request, row in zip(requests, drawn, strict=True):
        prompt, response = torch.tensor(request.prompt), torch.tensor(row.tokens)
        if TOKEN in row.tokens:
            continue  # which transformers takes for another sound
        with torch.no_grad():
            expected = hearing_logprobs(whole, tmp_path, prompt, request.pictures, response)
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, rtol=1e-5, atol=1e-5)
    assert requests[4].prompt == requests[6].prompt  # of two sounds
    assert drawn[4].logprobs != drawn[6].logprobs
