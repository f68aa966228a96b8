"""Layers that predict further tokens (MTP), by the names that files have for their weights.

Loads no torch.
"""

import re
from typing import Final

_BEGINNINGS: Final = ("mtp.", "model.mtp_")
"""Of Qwen3-Next and Qwen3.5 the first; of MiMo and ERNIE 4.5 the second."""
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")
"""Of DeepSeek-V3 and GLM-4.5 they lie behind the model's own layers."""


def is_mtp_weight(name: str, layers: int | None) -> bool:
    """Whether a weight is of such a layer, in a model of so many; None where nobody knows."""
    layer = _LAYER.match(name)
    is_behind = layer is not None and layers is not None and int(layer[1]) >= layers
    return is_behind or name.startswith(_BEGINNINGS)
