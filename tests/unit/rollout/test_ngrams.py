"""Guesses of what follows a text, against the same said letter by letter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.rollout import DraftsSpec
from ppojob_trainer.rollout.ngrams import ngram_drafts


def literal(text: list[int], spec: DraftsSpec, most: int) -> list[int]:
    """The longest end that stood before; where it has enough behind it for the last time."""
    wanted = min(spec.tokens, most)
    for length in range(spec.longest_match, spec.shortest_match - 1, -1):
        begins = range(len(text) - length)
        end = text[len(text) - length :]
        found = [n + length for n in begins if text[n : n + length] == end]
        if length <= len(text) and found:
            whole = [n for n in found if n + wanted <= len(text)]
            begin = whole[-1] if whole else found[0]
            return text[begin : begin + max(wanted, 0)]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_guesses_are_those_of_a_literal_search(text, tokens, shortest, more, most) -> None:
    spec = DraftsSpec(tokens=tokens, shortest_match=shortest, longest_match=shortest + more)
    found = ngram_drafts(np.array(text, dtype=np.int32), spec, most=most)
    assert found == literal(text, spec, most)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([7, 8, 9, 1, 7, 8], [9, 1, 7]),
        ([7, 8, 9, 1, 7, 8, 5, 7, 8], [5, 7, 8]),  # the last place
        ([5, 7, 8, 9, 1, 7, 8, 2, 3, 5, 7, 8], [9, 1, 7]),  # the longer end
        ([7, 8, 7, 8, 7, 8], [7, 8]),  # all that is behind the first of two places
        ([1, 2, 3], []),
        ([8], []),
    ],
)
def test_by_hand(text, found) -> None:
    spec = DraftsSpec(tokens=3, shortest_match=2, longest_match=3)
    assert ngram_drafts(np.array(text, dtype=np.int32), spec, most=99) == found
