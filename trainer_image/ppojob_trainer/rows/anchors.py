"""Turn anchors: the state before each turn, for estimators that compare turns of equal state."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ppojob_trainer.data.media.pictures import LaterPicture, unpacked_later
from ppojob_trainer.rows.experience import Experience


def turn_anchors(rows: Experience) -> Tensor:
    """Return (tokens,) int64 hashes of the input before each turn.

    A turn is a run of trained tokens. At its first token is a hash of the tokens and pictures since
    the turn before, 0 elsewhere. For the first turn of a row, it is the hash of nothing.
    """
    anchors = np.zeros(rows.response_tokens.numel(), np.int64)
    tokens, mask, begin = rows.response_tokens.numpy(), rows.mask.numpy(), 0
    later = rows.later_pictures or [b""] * rows.num_rows
    for pictures, length in zip(later, rows.lengths.tolist(), strict=True):
        row = slice(begin, begin + length)
        _set_anchors(anchors[row], tokens[row], mask[row], unpacked_later(pictures))
        begin += length
    return torch.from_numpy(anchors)


def _set_anchors(
    anchors: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_],
    pictures: Sequence[LaterPicture],
) -> None:
    """Write the anchors of a row."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    before = 0
    for begin, end in edges.reshape(-1, 2).tolist():
        state = hashlib.blake2b(tokens[before:begin].tobytes(), digest_size=8)
        for picture in pictures:
            if before <= picture.start < begin:
                state.update(picture.file)
        anchors[begin] = int.from_bytes(state.digest(), "little", signed=True)
        before = end
