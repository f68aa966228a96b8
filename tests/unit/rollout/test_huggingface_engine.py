from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from engine_phase import generate
from family_models import AS_OTHERS, FAMILY_MODELS
from tiny_models import TWO_LAYERS, make_model
from transformers import PreTrainedModel, RepetitionPenaltyLogitsProcessor

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.models.lora import adapters_of, add_adapters, draw_adapters
from ppojob_trainer.models.state_dict import named_full_adapters, named_full_tensors
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import (
    Finished,
    Request,
    RolloutError,
    SamplingParams,
    StopTexts,
)

VOCAB = 64


def tiny_model(seed: int = 0, *, tied: bool = True) -> PreTrainedModel:
    no_tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": VOCAB, **TWO_LAYERS, **no_tokens}
    return make_model(seed=seed, tie_word_embeddings=tied, **sizes)


def tiny_engine(seed: int = 0, *, tied: bool = True, max_sequences: int = 64) -> HuggingFaceEngine:
    model = tiny_model(seed, tied=tied)
    return HuggingFaceEngine(model, max_model_tokens=64, max_sequences=max_sequences)


def sampling(temperature: float = 1.0, **changes: object) -> SamplingParams:
    return replace(SamplingParams(temperature, 1.0, -1, max_tokens=12), **changes)


def mixed_requests() -> list[Request]:
    """Prompts of different lengths, several samples each, with different ways to draw."""
    ways = [
        sampling(),
        sampling(0.7, stop_token_ids=(3, 5)),
        sampling(0.0),
        sampling(1.3, top_k=5, top_p=0.8, min_p=0.01),
        sampling(0.0, repetition_penalty=1.3),
        sampling(1.3, repetition_penalty=1.1),
    ]
    return [
        Request(
            request_id=f"row-{n}",
            prompt=tuple((7 * (n // 4) + k) % VOCAB for k in range(1 + (n // 4) * 3)),
            sampling=ways[n % len(ways)],
            seed=1000 + n,
        )
        for n in range(24)
    ]


@pytest.mark.parametrize("has_lengths", [False, True])
def test_adapters_beside_weights_are_taken_alone_once_the_weights_are_there(has_lengths) -> None:
    targets = ("q_proj", "up_proj")
    lora = LoraSpec(rank=3, alpha=5.0, target_modules=targets, weight_decomposed=has_lengths)
    adapted, own = tiny_model(), tiny_model(seed=1)
    for model in (adapted, own):
        add_adapters(model, lora)
    draw_adapters(adapted, seed=2)
    engine = HuggingFaceEngine(own, max_model_tokens=64, max_sequences=64)
    with pytest.raises(RolloutError, match="21 tensors missing"):
        engine.load_weights(1, named_full_adapters(adapted))
    engine.load_weights(1, adapted.named_parameters())
    for adapter in adapters_of(adapted).values():
        adapter.b.normal_(std=0.3)
        if adapter.m is not None:
            adapter.m.mul_(torch.rand_like(adapter.m) + 0.5)
    engine.load_weights(2, named_full_adapters(adapted))
    rows = mixed_requests()
    other = HuggingFaceEngine(tiny_model(seed=3), max_model_tokens=64, max_sequences=64)
    other.load_weights(2, named_full_tensors(adapted))
    for ours, merged in zip(generate(engine, rows), generate(other, rows), strict=True):
        assert ours.tokens == merged.tokens
        assert ours.logprobs == pytest.approx(merged.logprobs, abs=1e-5)
    with pytest.raises(RolloutError, match="1 tensors missing"):
        engine.load_weights(3, list(named_full_adapters(adapted))[1:])


@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=[pytest.mark.long] * (one in AS_OTHERS)) for one in FAMILY_MODELS],
)
def test_logprobs_equal_a_forward_over_the_whole_text(family: str) -> None:
    """Without cache, padding or batch; rows that top-k and top-p cut are left out."""
    requests = [r for r in mixed_requests() if r.sampling.top_k == -1]
    kind, options = FAMILY_MODELS[family]
    sizes = {"vocab_size": VOCAB, **TWO_LAYERS, "pad_token_id": 0, "eos_token_id": 0, **options}
    model, same = (make_model(kind, **sizes) for _ in range(2))
    model.set_attn_implementation("eager")
    if family == "llama4_text":  # whose positions transformers takes from padded rows
        unify_modules(same)
    engine = HuggingFaceEngine(same, max_model_tokens=64, max_sequences=64)
    for request, done in zip(requests, generate(engine, requests), strict=True):
        assert done.request_id == request.request_id
        ids = torch.tensor([[*request.prompt, *done.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
        drawn = torch.tensor(done.tokens)
        penalise = RepetitionPenaltyLogitsProcessor(request.sampling.repetition_penalty)
        ends = range(len(request.prompt), ids.shape[1])
        logits = torch.cat(
            [penalise(ids[:, :end], row[None]) for end, row in zip(ends, logits, strict=True)]
        )
        scaled = torch.log_softmax(logits / (request.sampling.temperature or 1.0), dim=-1)
        reference = scaled.gather(-1, drawn[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(done.logprobs), reference, atol=1e-5, rtol=1e-5)
        if request.sampling.temperature == 0.0:
            assert torch.equal(logits.argmax(dim=-1), drawn)


def test_generation_neither_reads_nor_moves_the_global_generator() -> None:
    first = generate(tiny_engine(), mixed_requests())
    engine = tiny_engine()
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert generate(engine, mixed_requests()) == first
    assert torch.equal(torch.random.get_rng_state(), before)


def test_company_and_admission_in_waves_change_no_token() -> None:
    requests = mixed_requests()
    together = generate(tiny_engine(), requests)
    in_waves = generate(tiny_engine(max_sequences=5), requests)
    alone = [generate(tiny_engine(), [request])[0] for request in requests]
    assert [d.tokens for d in together] == [d.tokens for d in in_waves] == [d.tokens for d in alone]
    for one, other in zip(together, alone, strict=True):
        # Values are about 6: this is 20 times the distance of two numbers in float32 there.
        torch.testing.assert_close(
            torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=2e-5, rtol=0
        )


def test_the_ending_token_is_kept_and_its_reason_told() -> None:
    ends = tuple(range(0, VOCAB, 4))
    requests = [Request(f"{n}", (1,), sampling(stop_token_ids=ends), seed=n) for n in range(32)]
    done = generate(tiny_engine(), requests)
    stopped = [d for d in done if d.finish_reason == "stop"]
    assert stopped
    for d in done:
        assert not set(d.tokens[:-1]) & set(ends)
        assert len(d.tokens) == len(d.logprobs) <= 12
        assert (d.tokens[-1] in ends) == (d.finish_reason == "stop")
        assert d.finish_reason == "stop" or len(d.tokens) == 12


def test_abort_keeps_what_was_drawn_and_spares_the_others() -> None:
    engine = tiny_engine(max_sequences=2)
    requests = [Request(f"{n}", (1, 2), sampling(), seed=n) for n in range(3)]
    for request in requests:
        engine.submit(request)
    assert [*engine.step(), *engine.step()] == []
    for request_id in ("0", "2", "never heard of"):
        engine.abort(request_id)
    running, waiting = engine.step()
    assert (running.request_id, running.finish_reason, len(running.tokens)) == ("0", "abort", 2)
    assert (waiting.request_id, waiting.finish_reason, waiting.tokens) == ("2", "abort", ())
    rest: list[Finished] = []
    while engine.has_work():
        rest += engine.step()
    alone = generate(tiny_engine(), [requests[1]])[0]
    assert [d.tokens for d in rest] == [alone.tokens]


def test_a_phase_that_fails_leaves_an_idle_engine() -> None:
    engine = tiny_engine()
    with pytest.raises(ValueError, match="the id is already in use"):
        generate(engine, [*mixed_requests(), mixed_requests()[0]])
    assert not engine.has_work()
    assert generate(engine, mixed_requests()) == generate(tiny_engine(), mixed_requests())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_without_numbers_is_named_by_its_request(temperature: float) -> None:
    engine = tiny_engine()
    tensors = {name: torch.full_like(t, torch.nan) for name, t in tiny_model().named_parameters()}
    engine.load_weights(3, tensors.items())
    with pytest.raises(RolloutError, match=r"request 'a': got NaN .* weights of version 3"):
        generate(engine, [Request("a", (1,), sampling(temperature), seed=0)])
    assert not engine.has_work()


@pytest.mark.parametrize("tied", [True, False])
def test_loaded_weights_are_those_of_a_fresh_engine(tied: bool) -> None:
    engine = tiny_engine(seed=0, tied=tied)
    before = generate(engine, mixed_requests())
    engine.load_weights(7, tiny_model(seed=1, tied=tied).named_parameters())
    fresh = generate(tiny_engine(seed=1, tied=tied), mixed_requests())
    after = generate(engine, mixed_requests())
    assert [(d.tokens, d.logprobs) for d in after] == [(d.tokens, d.logprobs) for d in fresh]
    assert {d.policy_version for d in before} == {0}
    assert {d.policy_version for d in after} == {7} == {engine.policy_version}


def test_weights_that_do_not_fit_are_refused() -> None:
    engine = tiny_engine()
    tensors = dict(tiny_model(seed=1).named_parameters())
    norm = tensors.pop("model.norm.weight")
    for wrong, match in [
        ({}, r"1 tensors missing, first model\.norm\.weight"),
        ({"norm.weight": norm}, r"'norm\.weight': the model has no such tensor"),
        ({"model.norm.weight": norm[:3]}, r"got shape \(3,\)"),
    ]:
        with pytest.raises(RolloutError, match=match):
            engine.load_weights(1, {**tensors, **wrong}.items())
    assert engine.policy_version == 0


def test_a_busy_or_sleeping_engine_refuses() -> None:
    engine = tiny_engine()
    engine.submit(Request("a", (1,), sampling(), seed=0))
    with pytest.raises(RolloutError, match="in flight"):
        engine.load_weights(1, tiny_model().named_parameters())
    with pytest.raises(RolloutError, match="in flight"):
        engine.reset_cache()
    with pytest.raises(RolloutError, match="still holds requests"):
        generate(engine, mixed_requests())
    engine.abort("a")
    engine.step()
    engine.sleep()
    engine.sleep()
    with pytest.raises(RolloutError, match="asleep"):
        engine.submit(Request("a", (1,), sampling(), seed=0))
    engine.load_weights(0, tiny_model().named_parameters())
    assert generate(engine, mixed_requests()) == generate(tiny_engine(), mixed_requests())
    engine.close()
    engine.close()
    with pytest.raises(RolloutError, match="closed"):
        engine.submit(Request("a", (1,), sampling(), seed=0))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "got an empty prompt"),
        ((1, VOCAB), f"got token {VOCAB}: "),
        ((-1, 2), "got token -1"),
        ((1,) * 60, "got 60 prompt tokens and up to 12 "),
    ],
)
def test_requests_that_do_not_fit_are_refused(prompt: tuple[int, ...], message: str) -> None:
    engine = tiny_engine()
    with pytest.raises(ValueError, match=message):
        engine.submit(Request("a", prompt, sampling(), seed=0))
    assert not engine.has_work()


def test_a_text_ends_a_response_with_the_token_that_completes_it() -> None:
    """Text of a token: one letter of four, so that texts of two letters need two tokens."""

    def decode(tokens: Sequence[int]) -> str:
        return "".join("abcd"[token % 4] for token in tokens)

    texts = StopTexts(("bc", "dd"), decode)
    plain = [Request(f"{n}", (1,), sampling(), seed=n) for n in range(32)]
    asked = [replace(r, sampling=replace(r.sampling, stop_texts=texts)) for r in plain]
    ended = 0
    for whole, cut in zip(
        generate(tiny_engine(), plain), generate(tiny_engine(), asked), strict=True
    ):
        text = decode(whole.tokens)
        ends = [text.find(stop) + 2 for stop in texts.texts if stop in text]
        expected = min(ends, default=len(text))
        assert cut.tokens == whole.tokens[:expected]
        assert cut.finish_reason == ("stop" if ends else "length")
        ended += bool(ends)
    assert 0 < ended < 32
