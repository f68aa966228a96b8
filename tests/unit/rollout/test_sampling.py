import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_trainer.rollout.protocol import SamplingParams
from ppojob_trainer.rollout.sampling import draw, processed_logprobs


def params(temperature: float = 1.0, top_p: float = 1.0, top_k: int = -1) -> SamplingParams:
    return SamplingParams(temperature, top_p, top_k, max_tokens=1)


def literal(logits: list[float], sampling: SamplingParams) -> list[float]:
    """The definition, one token at a time."""
    scaled = [value / (sampling.temperature or 1.0) for value in logits]
    kept = sorted(range(len(scaled)), key=lambda n: -scaled[n])
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
)


@given(st.lists(WAYS, min_size=1, max_size=5), st.integers(0, 10_000))
@settings(deadline=None)
def test_the_processed_distribution_is_the_literal_one(ways: list[SamplingParams], s: int) -> None:
    logits = torch.randn(len(ways), 17, generator=torch.Generator().manual_seed(s)) * 2
    result = processed_logprobs(logits, ways)
    for row, sampling in enumerate(ways):
        expected = torch.tensor(literal(logits[row].double().tolist(), sampling)).float()
        torch.testing.assert_close(result[row], expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_logits_are_lifted_before_the_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    result = processed_logprobs(logits.bfloat16(), [params(0.3)])
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.log_softmax(logits / 0.3, dim=-1))


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


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, 0.001]),
        ("top_p", [0.0, 1.1]),
        ("top_k", [0, -2]),
        ("max_tokens", [0]),
    ],
)
def test_impossible_sampling_is_refused(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{name}: got {value}"):
            replace(params(), **{name: value})
