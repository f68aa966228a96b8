"""The base of every model of the resource, and the value types that many of them share."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

T = TypeVar("T")


class Section(BaseModel):
    """A frozen part of the resource: camelCase in YAML, snake_case in Python, no unknown field.

    Types are strict (`"2"` is no integer, `"false"` no boolean) and numbers are finite, as an API
    server would have them; the docstring under a field becomes its description in the CRD.
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
Url = Annotated[str, Field(min_length=1, max_length=4096, pattern=PRINTABLE)]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=PRINTABLE)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Probability = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=10_000_000)]
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
