"""Sound files of rows, and placeholders for them in messages.

A sound travels as what models hear of it: one channel of float32, at the pace of their features.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:  # children that call tools load this module too, and have no time for it
    import numpy as np
    from numpy.typing import NDArray

MARK: Final = "<audio>"
_BEGIN: Final = b"\0sound"
"""No file of a picture begins so."""

Samples: TypeAlias = "NDArray[np.float32]"


def packed_sound(samples: Samples) -> bytes:
    """A sound as a file among those of pictures."""
    return _BEGIN + samples.astype("<f4").tobytes()


def sound_of(file: bytes) -> "Samples | None":
    """The samples of the sound that a file is; None of a picture's or a clip's."""
    if not file.startswith(_BEGIN):
        return None
    import numpy as np

    return np.frombuffer(file, "<f4", offset=len(_BEGIN)).astype(np.float32)
