"""The base of every model of the resource, and what many of them share: types, sources of code."""

import re
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from ppojob_api.contract import CODE_FOLDER

T = TypeVar("T")


class Section(BaseModel):
    """A frozen part of the resource: camelCase in YAML, snake_case in Python, no unknown field.

    Types are strict (`"2"` is no integer, `"false"` no boolean) and numbers are finite, as an API
    server would have them. The docstring under a field is its description in the CRD; a field
    without one, whose type is a section, has the first paragraph of that section's docstring.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
    )


# A manifest gives lists; the models keep tuples, so that frozen means frozen.
Items = Annotated[tuple[T, ...], Field(strict=False)]

# Control characters in a name end up in logs and file names; no path of a model needs them.
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=PRINTABLE)]
TEMPLATE_MARK = r"\{[{%]"
"""What a chat template holds, and the path of a file does not."""
Template = Annotated[
    str, Field(min_length=1, max_length=65_536, pattern=rf"{PRINTABLE}|{TEMPLATE_MARK}")
]
Url = Annotated[str, Field(min_length=1, max_length=4096, pattern=PRINTABLE)]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=PRINTABLE)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Coefficient = Annotated[float, Field(ge=0, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
# Whole numbers, of the forms that Kubernetes knows. An API server may keep one in another form
# ("1024Mi" as "1Gi"); the operator bears with that.
Quantity = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
Probability = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=10_000_000)]
MinP = Annotated[float, Field(ge=0, lt=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=100)]
Temperature = Annotated[float, Field(ge=0, le=100)]
FloatType = Literal["float32", "bfloat16"]
AutoFloatType = Literal["auto", "float32", "bfloat16"]


def _as_a_cluster_has_it(value: JsonValue) -> JsonValue:
    """A value of which whole numbers are integers: kubectl sends 1.0 as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_as_a_cluster_has_it(one) for one in value]
    if isinstance(value, dict):
        return {name: _as_a_cluster_has_it(one) for name, one in value.items()}
    return value


_EXACT = 2**53
Arguments = Annotated[
    dict[str, JsonValue], Field(max_length=64), AfterValidator(_as_a_cluster_has_it)
]

# Names and values in the forms that Kubernetes takes: other ones would be refused with the pod.
# After `IsDNS1123Subdomain`, `IsQualifiedName`, `IsValidLabelValue` and `IsConfigMapKey` of
# k8s.io/apimachinery/pkg/util/validation, and `validateContainerResourceName` of
# k8s.io/kubernetes/pkg/apis/core/validation.
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


def is_template(given: str) -> bool:
    """Whether it is a chat template itself, and not the path of a file with one."""
    return re.search(TEMPLATE_MARK, given) is not None


def is_label_key(text: str) -> bool:
    """Whether a label or an annotation may have this name; a schema knows no names of a map."""
    return len(text) <= _LIMIT and re.fullmatch(LABEL_KEY_PATTERN, text) is not None


def is_label_value(text: str) -> bool:
    """Whether a label may have this value."""
    return len(text) <= _LABEL_VALUE_LIMIT and re.fullmatch(_LABEL_VALUE, text) is not None


class ConfigMapSource(Section):
    """Code in a ConfigMap of the job's namespace; only the pods that run it mount it."""

    name: ObjectName
    """Name of the ConfigMap."""

    key: Name
    """Key with the Python file: reward.py. The other keys are files in its folder."""


class CodeSource(Section):
    """A Python file."""

    path: Path | None = None
    """Python file."""

    config_map: ConfigMapSource | None = None
    """Python file in a ConfigMap, on a cluster."""

    @property
    def file(self) -> str | None:
        """The Python file, where the pods that run it find it; None where there is none."""
        if self.config_map is not None:
            return f"{CODE_FOLDER}/{self.config_map.name}/{self.config_map.key}"
        return self.path
