"""Prompt-lookup drafts: the tokens that followed earlier occurrences of the last n-gram."""

import numpy as np
from numpy.typing import NDArray

from ppojob_api.v1alpha1.rollout import DraftsSpec


def ngram_drafts(text: NDArray[np.int32], spec: DraftsSpec, *, most: int) -> list[int]:
    """Return up to `spec.tokens` and `most` draft tokens; none without an earlier match.

    The match is the longest suffix of the text, of `shortest_match` to `longest_match` tokens, that
    occurs earlier: the last occurrence followed by enough tokens, else the first one.
    """
    wanted = min(spec.tokens, most)
    if wanted < 1:
        return []
    # Positions of the suffix's last token; the suffix grows by one token per iteration.
    places, length = np.flatnonzero(text[:-1] == text[-1]), 1
    while places.size and length < spec.longest_match:
        longer = places[places >= length]
        longer = longer[text[longer - length] == text[-1 - length]]
        if not longer.size:
            break
        places, length = longer, length + 1
    if not places.size or length < spec.shortest_match:
        return []
    with_enough = places[places < len(text) - wanted]
    begin = int(with_enough[-1] if with_enough.size else places[0]) + 1
    return [int(token) for token in text[begin : begin + wanted]]
