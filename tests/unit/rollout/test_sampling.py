import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_trainer.rollout.protocol import SamplingParams
from ppojob_trainer.rollout.sampling import (
    _sum_in_blocks,
    draw,
    penalised,
    processed_logprobs,
    sample_seed,
)


def params(
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = -1, min_p: float = 0.0
) -> SamplingParams:
    return SamplingParams(temperature, top_p, top_k, max_tokens=1, min_p=min_p)


def literal(logits: list[float], sampling: SamplingParams) -> list[float]:
    """The definition, one token at a time."""
    scaled = [value / (sampling.temperature or 1.0) for value in logits]
    kept = sorted(range(len(scaled)), key=lambda n: -scaled[n])
    if sampling.temperature > 0.0:
        likeliest = math.exp(scaled[kept[0]])
        kept = [n for n in kept if math.exp(scaled[n]) >= sampling.min_p * likeliest]
    if sampling.temperature > 0.0 and sampling.top_k != -1:
        kept = kept[: sampling.top_k]
    if sampling.temperature > 0.0 and sampling.top_p < 1.0:
        total = sum(math.exp(scaled[n]) for n in kept)
        nucleus, mass = [], 0.0
        for n in kept:
            nucleus.append(n)
            mass += math.exp(scaled[n]) / total
            if mass >= sampling.top_p:
                break
        kept = nucleus
    normalizer = math.log(sum(math.exp(scaled[n]) for n in kept))
    return [scaled[n] - normalizer if n in kept else -math.inf for n in range(len(scaled))]


WAYS = st.builds(
    params,
    st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    st.sampled_from([0.11, 0.52, 0.93, 1.0]),
    st.sampled_from([-1, 1, 3, 50]),
    st.sampled_from([0.0, 0.03, 0.4]),
)


@given(st.lists(WAYS, min_size=1, max_size=5), st.integers(0, 10_000))
@settings(deadline=None)
def test_the_processed_distribution_is_the_literal_one(ways: list[SamplingParams], s: int) -> None:
    logits = torch.randn(len(ways), 17, generator=torch.Generator().manual_seed(s)) * 2
    result = processed_logprobs(logits, ways)
    assert result.dtype == processed_logprobs(logits.bfloat16(), ways).dtype == torch.float32
    for row, sampling in enumerate(ways):
        expected = torch.tensor(literal(logits[row].double().tolist(), sampling)).float()
        torch.testing.assert_close(result[row], expected, atol=1e-5, rtol=1e-5)


def test_tokens_that_were_seen_get_worse_by_the_penalty() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0, 0.5]] * 3)
    ways = [replace(params(), repetition_penalty=penalty) for penalty in (2.0, 1.0, 0.5)]
    given = logits.clone()
    result = penalised(logits, ways, [(2, 1, 2), (2, 1), (0,)])
    assert result.tolist() == [[2, -2, 1.5, 0.5], [2, -1, 3, 0.5], [4, -1, 3, 0.5]]
    assert torch.equal(logits, given)
    assert penalised(logits.bfloat16(), ways, [(), (), ()]).dtype == torch.float32


def test_a_uniform_number_picks_by_the_cumulative_distribution() -> None:
    logprobs = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.25]).log().repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.76, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(logprobs, uniforms, [params()] * 6).tolist() == [1, 1, 2, 2, 4, 4]


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 1000))
@settings(deadline=None)
def test_a_token_that_was_cut_off_is_never_drawn(uniform: float, s: int) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(s)) * 4
    logprobs = processed_logprobs(logits, [params(1.0, 0.8, 7)])
    token = draw(logprobs, torch.tensor([uniform], dtype=torch.float64), [params()])
    assert torch.isfinite(logprobs[0, token])


def test_greedy_ignores_its_number() -> None:
    logprobs = torch.log_softmax(torch.tensor([[1.0, 5.0, 2.0]] * 2), dim=-1)
    uniforms = torch.tensor([0.0, 0.9999], dtype=torch.float64)
    assert draw(logprobs, uniforms, [params(0.0)] * 2).tolist() == [1, 1]


NUMBERS = st.integers(min_value=0, max_value=2**31)


def test_seeds_are_pinned() -> None:
    """A run of today is resumed by the program of tomorrow: these numbers never change."""
    assert sample_seed(0, 0, 0, 0, "train") == 4346222071147159656
    assert sample_seed(7, 12, 345, 6, "validation") == 582546782085202284


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(min_value=0, max_value=2**16))
def test_seeds_fit_a_signed_word_and_count_with_the_sample(job_seed, step, prompt, sample) -> None:
    first = sample_seed(job_seed, step, prompt, 0, "train")
    assert first >= 0
    assert sample_seed(job_seed, step, prompt, sample, "train") == first + sample < 2**63


def test_every_argument_counts() -> None:
    base = sample_seed(1, 2, 3, 0, "train")
    # The last two: no two argument lists run into each other.
    others = [(4, 2, 3), (1, 4, 3), (1, 2, 4), (12, 3, 3), (1, 23, 3)]
    seeds = {sample_seed(*numbers, 0, "train") for numbers in others}
    seeds |= {sample_seed(1, 2, 3, 0, "train", segment) for segment in (0, 1, 2)}
    assert len({base, sample_seed(1, 2, 3, 0, "validation"), *seeds}) == 9


def test_samples_of_a_prompt_draw_apart_although_torch_keeps_32_bits() -> None:
    streams = {
        float(torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        for seed in (sample_seed(0, 5, 17, sample, "train") for sample in range(256))
    }
    assert len(streams) == 256


@pytest.mark.parametrize("count", [1, 511, 512, 513, 5000])
def test_sums_in_blocks_are_those_up_to_each_value(count):
    values = torch.rand(3, count, dtype=torch.float64)
    torch.testing.assert_close(_sum_in_blocks(values), values.cumsum(-1))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 7])
def test_a_gpu_draws_what_a_processor_does(rows, strict_gpu):
    torch.manual_seed(0)
    logits, uniforms = torch.randn(rows, 150_000) * 3, torch.rand(rows, dtype=torch.float64)
    sampling = [params(top_p=0.9, top_k=1000) for _ in range(rows)]

    def drawn(device):
        logprobs = processed_logprobs(logits.to(device), sampling)
        return draw(logprobs, uniforms.to(device), sampling).tolist()

    assert drawn(strict_gpu) == drawn("cpu")
