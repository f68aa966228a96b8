import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.rollout.seeds import sample_seed

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


def test_a_run_hardly_repeats_a_stream() -> None:
    seeds = {
        sample_seed(0, step, prompt, sample, "train") & 0xFFFFFFFF
        for step in range(50)
        for prompt in range(64)
        for sample in range(8)
    }
    assert len(seeds) > 0.9999 * 50 * 64 * 8


def test_a_negative_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="sample_index: got -1"):
        sample_seed(0, 0, 0, -1, "train")
