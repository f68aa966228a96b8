"""What followed the last tokens of a text where they stood before: guesses of what comes next.

Prompt lookup (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding) over prompt and response.
"""

import numpy as np
from numpy.typing import NDArray

from ppojob_api.v1alpha1.rollout import DraftsSpec


def guesses(text: NDArray[np.int32], spec: DraftsSpec, *, most: int) -> list[int]:
    """Up to `spec.tokens` and `most` tokens that may follow a text; none where nothing is like it.

    The longest end of the text, of `shortest_match` to `longest_match` tokens, that stands in it
    before. Of several places the last one that has as many tokens behind it as are wanted, else the
    first one, which has the most.
    """
    wanted = min(spec.tokens, most)
    if wanted < 1:
        return []
    # Places of the last token of the end, one token longer with each round.
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
