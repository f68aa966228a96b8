"""Parsing of plain values to a job: all invalid fields become Problems at once."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ppojob_api import shape as shapes
from ppojob_api import suggestions
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.shape import PathKey, Shape
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.section import PRINTABLE

# Metadata that only the API server writes or reads; ignored.
SERVER_METADATA: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
    }
)

# A repaired value may hide a missing field below it, so repairing is repeated, up to this limit.
REPAIRS_LIMIT: Final = 4

_TOO_SMALL = {"greater_than", "greater_than_equal", "string_too_short", "too_short"}
_TOO_LARGE = {"less_than", "less_than_equal", "string_too_long", "too_long"}
_FORMER: Final = frozenset({"maxPicturePixels", "minPicturePixels"})
"""Old names of fields, which the `job.yaml` of older runs has as nulls."""


def parse(
    value: object, doubtful: Iterable[PathKey]
) -> tuple[PPOJob | None, list[Problem], set[PathKey]]:
    """Parse a job, without the paths that the YAML reader reported already.

    Returns:
        The job; with problems, one whose invalid fields are replaced, only for checks of the other
        fields; None if nothing can be checked. The problems of single fields. The paths whose value
        in the job is not the author's.
    """
    if not isinstance(value, dict) or _is_another_object(value):
        return None, [_no_job(value)], set()
    tree = _given({str(key): item for key, item in value.items()})
    # A doubtful value of an unknown field is still reported as an unknown field.
    unknown = {path for path in doubtful if shapes.at(path) is not None}
    for path in unknown:
        _replace(tree, path)
    problems: dict[str, Problem] = {}
    for _ in range(REPAIRS_LIMIT):
        try:
            job = PPOJob.model_validate(tree, by_alias=True, by_name=False)
        except ValidationError as error:
            found = [(_path(detail), detail) for detail in error.errors(include_url=False)]
            paths = {path for path, _ in found}
            for path, detail in found:
                if not _overlaps(path, unknown) and not _counts_wrong_items(path, detail, paths):
                    for problem in _problems(path, detail):
                        problems.setdefault(problem.where, problem)
            unknown |= paths
            for path in paths:
                _replace(tree, path)
        else:
            return job, list(problems.values()), unknown
    return None, list(problems.values()), unknown


def _no_job(value: object) -> Problem:
    """The problem of a value that is no job, whatever its fields are."""
    if isinstance(value, dict):
        why, allowed = "the file describes another kind of object", "a file of kind PPOJob"
        return Problem("kind", shown(value["kind"]), why, allowed, ReasonCode.NOT_ONE_OF)
    got, why = shown(value), f"{_kind(value)} is not a job"
    return Problem("PPOJob", got, why, "an object with spec", ReasonCode.WRONG_TYPE)


def _is_another_object(value: dict[str, Any]) -> bool:
    """Whether it is of another kind, so that its fields are not a job's with mistakes."""
    kind = value.get("kind")
    return isinstance(kind, str) and kind.lower() != "ppojob"


def _given(value: Any, path: PathKey = ()) -> Any:
    """A copy without the API server's metadata and without nulls, which mean absent.

    `kubectl apply` drops nulls from all maps, the API server from those of its schema.
    """
    if isinstance(value, list):
        return [_given(item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = shapes.members_at(path)
    from_server = SERVER_METADATA if path == ("metadata",) else ()
    return {
        key: _given(item, (*path, key))
        for key, item in value.items()
        # An unknown field is reported even if it is null.
        if key not in from_server
        and (item is not None or (fields and key not in fields and key not in _FORMER))
    }


def _overlaps(path: PathKey, others: Iterable[PathKey]) -> bool:
    """Whether a path is above, below or equal to one of the others."""
    return any(path[: len(other)] == other[: len(path)] for other in others)


def _path(detail: ErrorDetails) -> PathKey:
    path: PathKey = tuple(detail["loc"])
    for depth in range(1, len(path)):
        shape = shapes.at(path[:depth])
        if shape is not None and shape.kind == "any":
            # The rest are pydantic's names for JSON types, not keys of the manifest.
            return path[:depth]
    return path


def _counts_wrong_items(path: PathKey, detail: ErrorDetails, paths: set[PathKey]) -> bool:
    """Whether a list is "too short" only because items of it are invalid, which are reported."""
    inside = any(len(other) > len(path) and other[: len(path)] == path for other in paths)
    return inside and detail["type"] == "too_short"


def _replace(tree: dict[str, Any], path: PathKey) -> None:
    """Replace an invalid or missing field by a placeholder if it is required, else remove it."""
    parent: Any = tree
    for depth, key in enumerate(path[:-1]):
        inside = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(inside, dict):
            # An item of a list: remove the whole list, else the other items would move.
            _replace(tree, path[: depth + 1])
            return
        parent = inside
    last = path[-1] if path else None
    if not isinstance(parent, dict) or not isinstance(last, str):
        return
    parent.pop(last, None)
    member = shapes.members_at(path[:-1]).get(last)
    if member is not None and member.required:
        parent[last] = shapes.placeholder(member.shape)


def _problems(path: PathKey, detail: ErrorDetails) -> Iterator[Problem]:
    if detail["type"] != "extra_forbidden":
        yield _problem(path, detail)
        return
    for place, value in suggestions.leaves(path, detail["input"]) or [(path, detail["input"])]:
        yield Problem(shapes.dotted(place), shown(value), *suggestions.of_field(place, value))


def _problem(path: PathKey, detail: ErrorDetails) -> Problem:
    where, value, kind = shapes.dotted(path), detail["input"], detail["type"]
    shape = shapes.at(path)
    allowed = "printable text as a key" if shape is None else shape.allowed()
    if kind == "missing":
        return Problem(where, ABSENT, "the field is required", allowed, ReasonCode.REQUIRED)
    if kind == "literal_error" and shape is not None:
        field = shapes.dotted(tuple(key for key in path if isinstance(key, str)))
        return Problem(where, shown(value), *suggestions.of_word(field, value, shape))
    if kind in _TOO_SMALL | _TOO_LARGE | {"finite_number"}:
        why = _size(kind, value)
        allowed = "a finite number" if shape is not None and shape.kind == "any" else allowed
        return Problem(where, shown(value), why, allowed, ReasonCode.OUT_OF_RANGE)
    if shape is not None and shape.kind == "any":
        return Problem(where, shown(value), "it is not JSON", "plain JSON", ReasonCode.WRONG_TYPE)
    if kind in {"string_pattern_mismatch", "string_unicode"}:
        return _form(where, value, None if kind == "string_unicode" else shape)
    noun = "such a value" if shape is None else shapes.KIND_NAMES[shape.kind]
    why = f"{_kind(value)} is not {noun}"
    return Problem(where, shown(value), why, allowed, ReasonCode.WRONG_TYPE)


def _form(where: str, value: object, shape: Shape | None) -> Problem:
    """Text that does not match the field's pattern."""
    why, allowed = "the text has control characters or is not Unicode", "printable text"
    if shape is not None and shape.pattern not in (None, PRINTABLE):
        why, allowed = "the text has another form", f"text that fits {shape.pattern}"
    return Problem(where, shown(value), why, allowed, ReasonCode.BAD_FORM)


def _size(kind: str, value: object) -> str:
    if kind == "finite_number":
        return "the number is not finite"
    nouns: dict[type, str] = {str: "text", list: "list", tuple: "list", dict: "object"}
    noun = nouns.get(type(value), "number")
    sizes = ("small", "large") if noun == "number" else ("short", "long")
    return f"the {noun} is too {sizes[kind in _TOO_LARGE]}"


def _kind(value: object) -> str:
    """The type of a value as a noun, for `... is not an integer`."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number with a fraction",
        str: "text",
        list: "a list",
        tuple: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"a value of type {type(value).__name__}")
