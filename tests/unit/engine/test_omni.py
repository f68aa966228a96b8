"""Sounds, pictures and videos in one prompt: trainer and engine compute what the thinker does."""

from functools import partial
from pathlib import Path

import pytest
import torch
from engine_phase import generate
from omni_models import (
    PICTURE,
    SPEAKING,
    TOKEN,
    VIDEO,
    omni_form,
    omni_logits,
    omni_logprobs,
    omni_prompts,
    save_omni_model,
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


@pytest.mark.parametrize("kind", SPEAKING)
@pytest.mark.parametrize("share", [True, False])
def test_the_packed_forward_is_that_of_the_thinker(tmp_path: Path, kind: str, share: bool) -> None:
    thinker = save_omni_model(tmp_path, kind)
    form = omni_form(tmp_path)
    rows = two_responses(form, omni_prompts(form))
    thinker.audio_tower.requires_grad_(False)
    thinker.visual.requires_grad_(False)
    told = partial(omni_logprobs, thinker, tmp_path)
    as_the_whole(load_model(tmp_path), thinker, rows, told, share, learns=False)


@pytest.mark.parametrize("kind", SPEAKING)
def test_a_critic_sees_and_hears_what_the_thinker_does(tmp_path: Path, kind: str) -> None:
    """One whose head is a row of the output layer values a token by its logit."""
    thinker = save_omni_model(tmp_path, kind)
    critic, form = load_model(tmp_path, kind=CRITIC), omni_form(tmp_path)
    rows = two_responses(form, omni_prompts(form))
    with torch.no_grad():
        critic.score.weight.copy_(thinker.lm_head.weight[7:8])
    use_packed_attention(critic)
    with torch.no_grad():
        values = packed_pass(critic, ValueHead(), rows).outputs[0]
        responses = torch.split(rows.response_tokens, rows.lengths.tolist())
        logits = [
            omni_logits(thinker, tmp_path, rows.prompts[group], rows.pictures[group], response)
            for group, response in zip(rows.row_groups.tolist(), responses, strict=True)
        ]
    torch.testing.assert_close(values, torch.cat(logits)[:, 7], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SPEAKING)
def test_the_engine_draws_what_the_thinker_would(tmp_path: Path, kind: str) -> None:
    """Out of a folder that also holds what speaks."""
    thinker = save_omni_model(tmp_path, kind, speaks=True)
    form, model = omni_form(tmp_path), load_model(tmp_path)
    attach_tower(model, tmp_path, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=256, max_sequences=8)
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=9, stop_token_ids=(TOKEN, PICTURE, VIDEO))
    requests = [
        Request(str(n), tuple(form.expanded(ids, shown)), sampling, seed=n, pictures=shown)
        for n, (ids, shown) in enumerate(omni_prompts(form))
    ]
    for request, row in zip(requests, generate(engine, requests), strict=True):
        prompt, response = torch.tensor(request.prompt), torch.tensor(row.tokens)
        with torch.no_grad():
            expected = omni_logprobs(thinker, tmp_path, prompt, request.pictures, response)
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, rtol=0, atol=1e-5)
