"""Names and values in the forms that Kubernetes takes: other ones would be refused with the pod.

After `IsDNS1123Subdomain`, `IsQualifiedName`, `IsValidLabelValue` and `IsConfigMapKey` of
k8s.io/apimachinery/pkg/util/validation, and `validateContainerResourceName` of
k8s.io/kubernetes/pkg/apis/core/validation.
"""

import re
from typing import Annotated, Final

from pydantic import Field

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_WORD: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

_LIMIT: Final = 253
_LABEL_VALUE_LIMIT: Final = 63
LABEL_KEY_PATTERN: Final = rf"^({_DOMAIN}/)?{_WORD}$"
_LABEL_VALUE: Final = rf"^({_WORD})?$"

ObjectName = Annotated[str, Field(max_length=_LIMIT, pattern=rf"^{_DOMAIN}$")]
LabelKey = Annotated[str, Field(max_length=_LIMIT, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=_LABEL_VALUE_LIMIT, pattern=_LABEL_VALUE)]
DataKey = Annotated[str, Field(max_length=_LIMIT, pattern=r"^\.?[-_A-Za-z0-9][-._A-Za-z0-9]*$")]
EnvironmentName = Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
DeviceName = Annotated[str, Field(max_length=_LIMIT, pattern=rf"^{_DOMAIN}/{_WORD}$")]

LABEL_KEY_WORDS: Final = "at most 63 letters, digits, -, _ and ., behind DOMAIN/ if need be"
LABEL_VALUE_WORDS: Final = "at most 63 letters, digits, -, _ and ."


def is_label_key(text: str) -> bool:
    """Whether a label or an annotation may have this name; a schema knows no names of a map."""
    return len(text) <= _LIMIT and re.fullmatch(LABEL_KEY_PATTERN, text) is not None


def is_label_value(text: str) -> bool:
    """Whether a label may have this value."""
    return len(text) <= _LABEL_VALUE_LIMIT and re.fullmatch(_LABEL_VALUE, text) is not None


def is_device(name: str) -> bool:
    """Whether a resource is one that a device plugin offers; quotas have names of their own."""
    return is_label_key(name) and "/" in name and not name.startswith("requests.")
