"""Sounds as files among the pictures of a row, and their placeholders.

A file holds one channel of float32 at the sampling rate of the model.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:  # tool processes import this module, and numpy would slow their start
    import numpy as np
    from numpy.typing import NDArray

MARK: Final = "<audio>"
_BEGIN: Final = b"\0sound"
"""Prefix of a sound; no picture file begins with it."""

Samples: TypeAlias = "NDArray[np.float32]"


def packed_sound(samples: Samples) -> bytes:
    """Encode (samples,) a sound as a file."""
    return _BEGIN + samples.astype("<f4").tobytes()


def sound_of(file: bytes) -> "Samples | None":
    """Decode (samples,) float32 from the sound in a file; None for another file."""
    if not file.startswith(_BEGIN):
        return None
    import numpy as np

    return np.frombuffer(file, "<f4", offset=len(_BEGIN)).astype(np.float32)
