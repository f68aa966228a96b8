"""Prompt-lookup drafts: tokens that followed the last n-gram at its earlier places."""

import numpy as np
from numpy.typing import NDArray

from ppojob_api.v1alpha1.rollout import DraftsSpec


def guesses(text: NDArray[np.int32], spec: DraftsSpec, *, most: int) -> list[int]:
    """Return up to `spec.tokens` and `most` draft tokens; none without an earlier match.

    The match is the longest suffix of the text, of `shortest_match` to `longest_match` tokens, that
    occurs earlier. Of several places it takes the last one followed by as many tokens as wanted,
    else the first one, which has the most.
    """
    wanted = min(spec.tokens, most)
    if wanted < 1:
        return []
    # Places of the suffix's last token; the suffix is one token longer each round.
    places, length = np.flatnonzero(text[:-1] == text[-1]), 1
    while places.size and length < spec.longest_match:
        longer = places[places >= length]
        longer = longer[text[longer - length] == text[-1 - length]]
        if not longer.size:
            break
        places, length = longer, length + 1
    if not places.size or length < spec.shortest_match:
        return []
    behind = places[places < len(text) - wanted]
    begin = int(behind[-1] if behind.size else places[0]) + 1
    return [int(token) for token in text[begin : begin + wanted]]
