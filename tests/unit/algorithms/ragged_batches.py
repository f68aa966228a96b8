"""Batches of ragged rows to try the algorithms on: drawn by hypothesis, or a fixed list."""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Batch:
    """Rows as nested lists (for the literal forms), and the same as flat columns.

    Every number is exact in float32, so both precisions see the same input.
    """

    groups: list[int]
    mask: list[list[bool]]
    rewards: list[list[float]]
    values: list[list[float]]
    returns: list[list[float]]
    new_values: list[list[float]]
    advantages: list[list[float]]
    logprobs: list[list[float]]
    old_logprobs: list[list[float]]
    ref_logprobs: list[list[float]]
    rollout_logprobs: list[list[float]]

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(row) for row in self.mask], dtype=torch.int64)

    @property
    def flat_mask(self) -> Tensor:
        return torch.tensor([m for row in self.mask for m in row], dtype=torch.bool)

    @property
    def squares(self) -> list[list[float]]:
        """In the place of sums of squared probabilities; so large that no weight is near 0."""
        return [
            [1.0 + (1 + (7 * token + 3 * row) % 61) / 64 for token in range(len(trained))]
            for row, trained in enumerate(self.mask)
        ]

    @property
    def kept(self) -> list[list[bool]]:
        """What of the mask a rejection leaves: nothing of the second row, of others some."""
        return [
            [m and row != 1 and (row + 3 * token) % 4 != 1 for token, m in enumerate(trained)]
            for row, trained in enumerate(self.mask)
        ]

    @property
    def row_groups(self) -> Tensor:
        return torch.tensor(self.groups, dtype=torch.int64)

    @property
    def num_tokens(self) -> int:
        return sum(sum(row) for row in self.mask)

    def flat(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([v for row in getattr(self, name) for v in row], dtype=dtype)

    def flat_poisoned(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.where(self.flat_mask, self.flat(name, dtype), torch.nan)


# Of 256 steps, multiples of 1/128: exact in float32, and so are their differences.
_RANGES = {
    "values": (-2.0, 2.0),
    "returns": (-3.0, 3.0),
    "new_values": (-2.0, 2.0),
    "advantages": (-3.0, 3.0),
    "logprobs": (-4.0, 0.0),
    "old_logprobs": (-4.0, 0.0),
    "ref_logprobs": (-4.0, 0.0),
    "rollout_logprobs": (-4.0, 0.0),
}

# Few values, so that groups of equal scores are common; 0.1 and 0.7 round in sums.
_REWARDS = torch.tensor([0.0, 0.0, 1.0, -1.0, 0.1, 0.7, 2.5], dtype=torch.float32).tolist()


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """One to eight rows of up to six tokens in up to four groups, masked tokens anywhere.

    A column is a text of bytes, one a token: numbers that are drawn one by one take most of a test.
    """
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))

    def drawn(count: int) -> Iterator[int]:
        return iter(draw(st.binary(min_size=count, max_size=count)))

    def column(value: Callable[[int], Any]) -> list[list]:
        numbers = drawn(sum(lengths))
        return [[value(next(numbers)) for _ in range(length)] for length in lengths]

    return Batch(
        groups=[(0, 3, 4, 11)[number % 4] for number in drawn(len(lengths))],
        mask=column(lambda number: number % 4 < 3),
        rewards=column(lambda number: _REWARDS[number % len(_REWARDS)]),
        **{
            name: column(lambda number, low=low, high=high: high - number * (high - low) / 256)
            for name, (low, high) in _RANGES.items()
        },
    )


def for_any_batch(test: Callable[..., None]) -> Callable[..., None]:
    return settings(max_examples=min(30, settings.default.max_examples))(given(batches())(test))


@functools.cache
def fixed_batches() -> list[Batch]:
    """Fifteen batches that never change, for comparisons that must come out the same each time.

    The rewards of the last three are 0 or 1, so that groups have equal scores.
    """
    source = random.Random(20240203)

    def column(lengths: list[int], low: float, high: float) -> list[list[float]]:
        return [
            [source.randint(round(low * 64), round(high * 64)) / 64 for _ in range(n)]
            for n in lengths
        ]

    def ends(lengths: list[int]) -> list[list[float]]:
        return [[0.0] * (n - 1) + [float(source.random() < 0.5)] for n in lengths]

    result = []
    for number in range(15):
        lengths = [source.randint(1, 6) for _ in range(source.randint(2, 9))]
        result.append(
            Batch(
                groups=[source.choice([0, 3, 4]) for _ in lengths],
                mask=[[source.random() < 0.7 for _ in range(n)] for n in lengths],
                rewards=column(lengths, -1.0, 1.0) if number < 12 else ends(lengths),
                **{name: column(lengths, *bounds) for name, bounds in _RANGES.items()},
            )
        )
    return result
