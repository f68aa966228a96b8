"""Takes what nobody may read out of what a tracker's library says."""

import re
from collections.abc import Mapping
from typing import Final

_SECRET_NAMES: Final = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^\s/@]+@")


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """A text without keys, tokens and passwords of the environment, and without those in URLs."""
    for name, value in environment.items():
        if value and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return _USER_IN_URL.sub("***@", text)
