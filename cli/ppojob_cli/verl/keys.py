"""The table of verl's keys, keys.txt: what each is by default, and how it becomes part of a job.

A row has keys apart by spaces, below the section that they stand in; verl's default; how it is
converted; and what to know besides. `key.*` is all below a key, `a.{b,c}` are two keys. Which field
a key becomes, or that it is not needed or not yet there, stands in `foreign_names` and in the
models, and nowhere here.

How: without a word the value is copied; `given`: verl's default is not; `positive`: only a number
above 0; `only`: another value is left out, for the reason that the remark gives; `speed`: it
changes no number; `nothing`: there is nothing to be said here; `with KEY`: it means nothing where
another key is off; `as KEY`: it is another name of that key; every other word is a function of
`conversions`. Lines that begin with `>` are for the page alone.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from pydantic import JsonValue

from ppojob_api import suggestions
from ppojob_api.foreign_names import Row
from ppojob_cli.verl.settings import value_of

HYDRA_GROUP: Final = "model_engine"
"""The key that stands for all choices of a group (`actor@actor_rollout_ref.actor`)."""

_PROSE: Final = "> "


@dataclass(frozen=True, slots=True)
class Key:
    """The row of one key."""

    name: str
    default: JsonValue
    how: str
    remark: str
    row: Row  # what `foreign_names` says of it

    @property
    def changes_numbers(self) -> bool:
        """Whether the key affects the numbers of the training."""
        return self.how not in {"speed", "given speed", "nothing"}

    @property
    def other(self) -> str:
        """The key of which it is another name, or on which it depends; else empty."""
        word, _, key = self.how.partition(" ")
        return key if word in {"as", "with"} else ""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table."""

    keys: tuple[str, ...]
    default: str
    how: str
    remark: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its rows and text."""

    title: str
    before: str
    lines: tuple[Line, ...]
    after: str

    @property
    def prefix(self) -> str:
        """Prefix of the keys of its rows."""
        return f"{self.title}." if re.fullmatch(r"[\w.]+", self.title) else ""


def head() -> str:
    """Return the text before the first section."""
    return _parts()[0]


@cache
def sections() -> tuple[Section, ...]:
    """Return the sections of the table."""
    return tuple(map(_section, _parts()[1:]))


@cache
def rows() -> dict[str, Key]:
    """Return all keys by full name."""
    return {key.name: key for key in _keys()}


_OF_SFT: Final = {
    "model": ("actor_rollout_ref.model",),
    "optim": ("actor_rollout_ref.actor.optim",),
    "engine": ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.actor.megatron"),
    "checkpoint": ("actor_rollout_ref.actor.checkpoint",),
    "profiler": ("actor_rollout_ref.actor.profiler",),
}
"""The sections of sft_trainer, whose rows are those of the one model that it trains."""


def find(name: str) -> Key | None:
    """Return the row of a key, or that of a pattern with the key."""
    return _find(HYDRA_GROUP if "@" in name or name in _OF_SFT else _in_full(name))


def _in_full(name: str) -> str:
    """Return the full name of a key of sft_trainer; others unchanged."""
    section, _, rest = name.partition(".")
    full = [f"{one}.{rest}" for one in _OF_SFT.get(section, ()) if rest]
    return next((one for one in full if _find(one) is not None), name)


def _find(name: str) -> Key | None:
    table = rows()
    if name in table:
        return table[name]
    words = name.split(".")
    above = (".".join(words[:length]) for length in range(len(words), 0, -1))
    return next((table[f"{one}.*"] for one in above if f"{one}.*" in table), None)


def nearest(name: str) -> str | None:
    """Return the known key that is most similar to an unknown one."""
    section, _, last = name.rpartition(".")
    here = {key.rpartition(".")[2]: key for key in rows() if key.rpartition(".")[0] == section}
    near = difflib.get_close_matches(last, here, n=1, cutoff=suggestions.NEAR)
    if near:
        return here[near[0]]
    alike = [key for key in rows() if key.rpartition(".")[2] == last]
    return next(iter(difflib.get_close_matches(name, alike, n=1, cutoff=0.0)), None)


def main_name(name: str) -> str:
    """Return the main name of a key."""
    key, name = find(name), _in_full(name)
    if key is None or not key.how.startswith("as "):
        return name
    return key.other + name.removeprefix(key.name.removesuffix(".*"))


@cache
def defaults() -> dict[str, JsonValue]:
    """Return verl's defaults."""
    return {name: key.default for name, key in rows().items() if key.default is not None}


def _parts() -> list[str]:
    text = resources.files("ppojob_cli.verl").joinpath("keys.txt").read_text(encoding="utf-8")
    return text.split("\n## ")


def _section(text: str) -> Section:
    title, *lines = text.splitlines()
    rows = [index for index, line in enumerate(lines) if line and not line.startswith(_PROSE)]
    before, after = lines[: rows[0]], lines[rows[-1] + 1 :]
    return Section(title, _prose(before), tuple(_line(lines[i]) for i in rows), _prose(after))


def _prose(lines: list[str]) -> str:
    return "\n".join(line.removeprefix(_PROSE) for line in lines if line)


def _line(text: str) -> Line:
    names, default, how, remark = (part.strip() for part in f"{text} |||".split("|", 3))
    is_field = names.startswith("(")
    keys = (names,) if is_field else tuple(key for part in names.split() for key in _each(part))
    return Line(keys, default, how, remark.strip(" |"))


def _each(text: str) -> Iterator[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`."""
    above, _, rest = text.partition("{")
    inner, _, below = rest.partition("}")
    yield from (f"{above}{name}{below}" for name in inner.split(","))


def _keys() -> Iterator[Key]:
    for section in sections():
        for line in section.lines:
            for name in () if line.keys[0].startswith("(") else line.keys:
                full = f"{section.prefix}{name}"
                yield Key(full, value_of(line.default), line.how, line.remark, _row_of(full))


def _row_of(name: str) -> Row:
    """Return the row of `foreign_names` for a key, or for its nearest parent."""
    words = name.removesuffix(".*").split(".")
    above = (suggestions.foreign_field(words[:length]) for length in range(len(words), 0, -1))
    row = next((row for row in above if row is not None), None)
    assert row is not None, f"{name}: no row in foreign_names"
    return row
