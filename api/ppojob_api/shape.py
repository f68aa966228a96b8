"""Schema of the models as data, for messages and for the CRD."""

import ast
import inspect
import itertools
import json
import re
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.section import Section

Kind = Literal["object", "map", "list", "string", "integer", "number", "boolean", "enum", "any"]
PathKey = tuple[str | int, ...]

_VERL = re.compile(r"(?:^|(?<=\. ))verl: ")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,63}")

KIND_NAMES: dict[Kind, str] = {
    "object": "an object",
    "map": "an object",
    "list": "a list",
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "enum": "one of the words",
    "any": "any value",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Schema of one field; limits are named as in pydantic's `Field`."""

    kind: Kind
    optional: bool = False
    model: type[Section] | None = None
    item: "Shape | None" = None
    choices: tuple[str, ...] = ()
    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None

    def allowed(self) -> str:
        """What the field accepts, in words."""
        return self.words() + (", or remove it" if self.optional else "")

    def words(self) -> str:
        """The same without saying that it may be removed."""
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "enum":
            words = ", ".join(self.choices)
            return f"one of {words}" if len(self.choices) > 1 else f"write {words}"
        if self.kind == "object" and self.model is not None:
            needed = ", ".join(name for name, m in members(self.model).items() if m.required)
            return f"an object with {needed}" if needed else "an object"
        if self.kind == "list" and self.item is not None:
            items = _range(self.min_length, self.max_length).removeprefix(" from")
            if self.min_length is not None and self.min_length == self.max_length:
                items = f" {self.min_length}"
            if len(self.item.choices) == 1:
                return f"a list of nothing but {self.item.choices[0]}"
            return f"a list{items and f' of{items} items'}, each {self.item.allowed()}"
        if self.kind == "string" and self.max_length is not None:
            return f"text of {self.min_length or 0} to {self.max_length} characters"
        return KIND_NAMES[self.kind] + _range(self.ge, self.le, self.gt, self.lt)


_LIMITS = ("ge", "le", "gt", "lt", "min_length", "max_length", "pattern")


def _range(
    ge: float | None, le: float | None, gt: float | None = None, lt: float | None = None
) -> str:
    """Limits as they follow a noun: ` from 1 to 8`, ` above 0`, or nothing."""
    if ge is not None and le is not None:
        return f" from {_plain(ge)} to {_plain(le)}"
    named = (("at least", ge), ("above", gt), ("at most", le), ("below", lt))
    both = " and ".join(f"{words} {_plain(limit)}" for words, limit in named if limit is not None)
    return f" {both}" if both else ""


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a section."""

    shape: Shape
    required: bool
    default: Any
    section: type[Section]
    name: str  # as in Python

    @property
    def description(self) -> str:
        """The docstring below it, else the first paragraph of its section's."""
        if own := _docstrings(self.section).get(self.name):
            return own
        of_section = (self.shape.model and self.shape.model.__doc__) or ""
        return " ".join(inspect.cleandoc(of_section).partition("\n\n")[0].split())

    @property
    def takes(self) -> str:
        """What the field accepts, and its default.

        Defaults of sections are not shown; without a default the meaning says what happens.
        """
        words = self.shape.words().removeprefix("write ")
        return f"{words}; {self.default_words}" if self.default_words else words

    @property
    def default_words(self) -> str:
        """`required`, `default 1`, or nothing."""
        if self.required:
            return "required"
        is_told = self.default is None or self.shape.kind == "object"
        return "" if is_told else f"default {json.dumps(self.default)}"

    @property
    def meaning(self) -> str:
        """Its description without verl's name."""
        return _VERL.split(self.description, maxsplit=1)[0].strip()

    @property
    def verl(self) -> str:
        """Verl's name and default; empty if the docstring has none."""
        return "".join(_VERL.split(self.description, maxsplit=1)[1:]).removesuffix(".")


@cache
def members(model: type[Section]) -> dict[str, Member]:
    """The fields of a section by the name that they have in YAML."""
    return {
        field.alias or name: Member(
            shape=_shape(field.annotation, field.metadata),
            required=field.is_required(),
            default=_default(field),
            section=model,
            name=name,
        )
        for name, field in model.model_fields.items()
    }


@cache
def _docstrings(model: type[Section]) -> dict[str, str]:
    """The docstrings below the fields of a section, each as one line.

    Pydantic would read them in every process, for a quarter of the time that all models take to
    load.
    """
    found: dict[str, str] = {}
    for base in reversed([base for base in model.__mro__ if issubclass(base, Section)]):
        (own,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(own, ast.ClassDef)
        for field, below in itertools.pairwise(own.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found


def at(path: PathKey) -> Shape | None:
    """The shape at a path, or None if the models have no such field."""
    shape: Shape | None = Shape(kind="object", model=PPOJob)
    for key in path:
        if shape is None:
            return None
        if isinstance(key, int):
            shape = shape.item if shape.kind == "list" else None
        elif shape.model is not None:
            member = members(shape.model).get(key)
            shape = None if member is None else member.shape
        else:
            shape = shape.item if shape.kind == "map" else None
    return shape


def members_at(path: PathKey) -> dict[str, Member]:
    """The fields of the section at a path; none if it is no section."""
    shape = at(path)
    return {} if shape is None or shape.model is None else members(shape.model)


def known(value: Any, shape: Shape) -> Any:
    """A value without the fields that the models do not have."""
    if isinstance(value, dict) and shape.model is not None:
        fields = members(shape.model)
        return {key: known(one, fields[key].shape) for key, one in value.items() if key in fields}
    if isinstance(value, list) and shape.item is not None:
        return [known(one, shape.item) for one in value]
    return value


def fields(model: type[Section] = PPOJob, prefix: str = "") -> Iterator[tuple[str, Member]]:
    """Every field below a section with its path, each section before what is in it.

    `[]` in a path stands for any item of a list.
    """
    for name, member in members(model).items():
        path, inner = f"{prefix}{name}", member.shape
        yield path, member
        if inner.kind == "list" and inner.item is not None:
            path, inner = f"{path}[]", inner.item
        if inner.model is not None:
            yield from fields(inner.model, f"{path}.")


def all_paths(model: type[Section] = PPOJob, prefix: str = "") -> Iterator[str]:
    """Every field of the resource as a path in YAML; items of lists have no index."""
    return (path.replace("[]", "") for path, _ in fields(model, prefix))


def dotted(path: PathKey) -> str:
    """A path as text: `spec.data.train[0].path`, other keys as `spec["a b"]`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _WORD.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{shown(key)}]"
    return text or "PPOJob"


def within(path: str, other: str) -> bool:
    """Whether a path (as text) equals another one or is below it."""
    return path == other or path.startswith((f"{other}.", f"{other}["))


def placeholder(shape: Shape) -> JsonValue:
    """A valid value for a shape, so that the rest of an invalid spec can be checked."""
    if shape.model is not None:
        return {k: placeholder(m.shape) for k, m in members(shape.model).items() if m.required}
    if shape.kind == "list" and shape.item is not None:
        return [placeholder(shape.item)] * (shape.min_length or 0)
    if shape.kind == "enum":
        return shape.choices[0]
    if shape.kind in {"integer", "number"}:
        return int(shape.ge or 1)
    if shape.kind == "boolean":
        return False
    return "x" if shape.kind == "string" else {}


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return None
    if isinstance(value, Section):
        # In full, since the API server evaluates rules on a default before the defaults inside it.
        return value.model_dump(mode="json", exclude_none=True)
    return list(value) if isinstance(value, tuple) else value


def _shape(annotation: Any, metadata: Iterable[object] = ()) -> Shape:
    """The shape of a type; limits are in its `Annotated` metadata or in that of its field."""
    facts, origin = list(metadata), get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        for fact in more:
            facts.extend(fact.metadata if isinstance(fact, FieldInfo) else [fact])
        return _shape(inner, facts)
    if origin in {Union, types.UnionType}:
        (inner,) = (arg for arg in get_args(annotation) if arg is not type(None))
        return replace(_shape(inner, facts), optional=True)
    limits: dict[str, Any] = {
        name: limit
        for name in _LIMITS
        for fact in facts
        if (limit := getattr(fact, name, None)) is not None
    }
    return replace(_without_limits(annotation, origin), **limits)


def _without_limits(annotation: Any, origin: Any) -> Shape:
    if origin is Literal:
        return Shape(kind="enum", choices=tuple(get_args(annotation)))
    if origin is tuple:
        first, *rest = get_args(annotation)
        length = None if rest == [...] else 1 + len(rest)
        return Shape(kind="list", item=_shape(first), min_length=length, max_length=length)
    if origin is dict:
        return Shape(kind="map", item=_shape(get_args(annotation)[1]))
    if annotation is JsonValue:
        return Shape(kind="any")
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Shape(kind="object", model=annotation)
    kinds: dict[Any, Kind] = {int: "integer", float: "number", str: "string", bool: "boolean"}
    return Shape(kind=kinds[annotation])
