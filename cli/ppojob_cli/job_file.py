"""Job files: reading and validation, with fields given on the command line.

`--set spec.seed=1` changes a value of the file before validation, so it is checked like the file;
problems name the override.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ppojob_api import manifest, validation
from ppojob_api.problem import (
    ABSENT,
    SHOWN_CHARACTERS,
    Problem,
    ReasonCode,
    counted,
    printable,
    shown,
)
from ppojob_api.shape import PathKey, dotted, within
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_trainer.errors import ConfigError

_FORM: Final = "PATH=VALUE, such as spec.seed=1 or spec.data.train[0].path=a.parquet"
_PART: Final = re.compile(r"(?:^|(?!^)\.)(?P<key>[^.\[\]\s]+)|\[(?P<index>[0-9]{1,6})\]")


@dataclass(frozen=True, slots=True)
class Override:
    """One field given on the command line."""

    where: str  # name for messages, `--set spec.seed=1`, or the option that sets it
    path: PathKey
    value: JsonValue
    # Problems of the value as YAML; they are not reported again for the field.
    problems: tuple[Problem, ...] = ()
    got: str = ""  # what to call the value in messages, where a command has set it
    origin: PathKey = ()  # the first part of its path that the file does not have

    def name(self, problem: Problem) -> Problem | None:
        """Rename a problem to this override; None if it is not about it."""
        whole, where = dotted(self.path), problem.where
        if within(where, whole) and where != whole:
            return replace(problem, where=f"{self.where}: {where}")
        if within(whole, where) and within(where, dotted(self.origin)):
            return replace(problem, where=self.where, got=self.got or problem.got)
        return None


Given = str | Override  # `PATH=VALUE` of `--set`, or a field that another option or command sets


class Overrides:
    """Applies overrides, in order, to a copy of a manifest's values."""

    def __init__(self, value: JsonValue, given: Sequence[Given]) -> None:
        self.value = copy.deepcopy(value)
        self.problems: list[Problem] = []  # of the overrides themselves
        self._applied: list[Override] = []
        for one in given:
            applied = parse_override(one) if isinstance(one, str) else one
            if isinstance(applied, Override):
                self.problems += applied.problems
                applied = _apply(self.value, applied)
            if isinstance(applied, Problem):
                self.problems.append(applied)
            else:
                self._applied.append(applied)

    @property
    def doubtful(self) -> list[PathKey]:
        """Paths of values with an entry in `problems`."""
        return [one.path for one in self._applied if one.problems]

    def named(self, problem: Problem) -> Problem:
        """Rename a problem to the last override that it is about, if there is one."""
        names = (one.name(problem) for one in reversed(self._applied))
        return next((found for found in names if found is not None), problem)


def parse_override(text: str) -> Override | Problem:
    """Parse `PATH=VALUE`, with a value as strict as in a manifest."""
    path_text, equals, value_text = text.partition("=")
    where = f"--set {printable(text, SHOWN_CHARACTERS)}"
    if not equals:
        return Problem(where, shown(text), "there is no =", _FORM, ReasonCode.BAD_FORM)
    path = _path(path_text)
    if path is None:
        return Problem(where, shown(path_text), "it is no path", _FORM, ReasonCode.BAD_FORM)
    if not value_text.strip():
        return Override(where, path, None)
    read = manifest.read_bytes(value_text.encode("utf-8", "surrogateescape"), where)
    problems = tuple(replace(problem, where=where) for problem in read.problems)
    return Override(where, path, read.value, problems)


def _path(text: str) -> PathKey | None:
    keys: list[str | int] = []
    end = 0
    while end < len(text):
        match = _PART.match(text, end)
        if match is None:
            return None
        keys.append(match["key"] if match["index"] is None else int(match["index"]))
        end = match.end()
    return tuple(keys) if keys and isinstance(keys[0], str) else None


def _apply(tree: JsonValue, given: Override) -> Override | Problem:
    origin: PathKey = ()
    place: Any = tree
    key: Any
    for depth, key in enumerate(given.path):
        problem = _unfit(place, key, given, dotted(given.path[:depth]))
        if problem is not None:
            return problem
        following = given.path[depth + 1 : depth + 2]
        is_there = key in place if isinstance(place, dict) else key < len(place)
        child = place[key] if is_there else None
        if not following or child is None:
            child = ([] if isinstance(following[0], int) else {}) if following else given.value
            origin = origin or given.path[: depth + 1]
            if isinstance(place, dict):
                place[key] = child
            else:
                place[key : key + 1] = [child]
        place = child
    return replace(given, origin=origin)


def _unfit(place: JsonValue, key: str | int, given: Override, name: str) -> Problem | None:
    got, code = shown(given.value), ReasonCode.WRONG_TYPE
    if isinstance(key, str) and not isinstance(place, dict):
        why, allowed = f"{name} is {_kind(place)} and has no fields", "a field of an object"
        if isinstance(place, list):
            item = f"[{key}]" if key.isdecimal() else f"[0].{key}"
            allowed = f"{name}{item}, an item by its number"
    elif isinstance(key, int) and not isinstance(place, list):
        why, allowed = f"{name} is {_kind(place)} and has no items", f"{name}.<field>"
    elif isinstance(key, int) and isinstance(place, list) and key > len(place):
        got, code = f"[{key}]", ReasonCode.OUT_OF_RANGE
        why = f"{name} has {counted(len(place), 'item')}"
        allowed = f"at most [{len(place)}], which appends one"
    else:
        return None
    return Problem(given.where, got, why, allowed, code)


def _kind(value: JsonValue) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): ABSENT}
    return kinds.get(type(value), "a number")


def validate_file(path: str, overrides: Sequence[Given] = ()) -> list[Problem] | PPOJob:
    """Return a job, or all problems of its file, the overrides and the resulting job."""
    read = manifest.read_file(path)
    problems = list(read.problems)
    if problems and read.value is None:
        return problems
    overridden = Overrides(read.value, overrides)
    problems += overridden.problems
    doubtful = (*read.doubtful, *overridden.doubtful)
    judged = validation.validate(overridden.value, doubtful=doubtful)
    if isinstance(judged, list):
        return problems + [overridden.named(problem) for problem in judged]
    return problems or judged


def load_job(path: str | Path, overrides: Sequence[Given] = ()) -> PPOJob:
    """Read a job from a file; a `ConfigError` has all problems at once."""
    judged = validate_file(str(path), overrides)
    if isinstance(judged, PPOJob):
        return judged
    raise ConfigError(list(map(str, judged)))
