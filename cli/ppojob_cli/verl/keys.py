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

_TITLE: Final = "\n## "
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
        if self.how.startswith("as ") and (main := find(self.other)):
            return main.changes_numbers
        return self.how not in {"speed", "given speed", "nothing"}

    @property
    def other(self) -> str:
        """The key of which it is another name, or on which it depends; else empty."""
        word, _, key = self.how.partition(" ")
        return key if word in {"as", "with"} else ""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table, with the prefix of its section, which its keys have."""

    prefix: str
    keys: tuple[str, ...]
    default: str
    how: str
    remark: str


@cache
def lines() -> tuple[str | Line, ...]:
    """Return the rows of the table, and the lines of text around them."""
    text = resources.files("ppojob_cli.verl").joinpath("keys.txt").read_text(encoding="utf-8")
    head, *sections = text.split(_TITLE)
    found: list[str | Line] = [*head.splitlines()]
    for section in sections:
        title, *rest = section.splitlines()
        prefix = f"{title}." if re.fullmatch(r"[\w.]+", title) else ""
        found.append(f"{_TITLE}{title}")
        for line in rest:
            is_text = not line or line.startswith(_PROSE)
            found.append(line.removeprefix(_PROSE) if is_text else _line(prefix, line))
    return tuple(found)


@cache
def rows() -> dict[str, Key]:
    """Return all keys by full name."""
    return {
        name: Key(name, value_of(line.default), line.how, line.remark, _row_of(name))
        for line in lines()
        if isinstance(line, Line)
        for name in line.keys
        if not name.startswith("(")
    }


_OF_SFT: Final = {
    "model": ("actor_rollout_ref.model", "actor_rollout_ref.actor"),
    "optim": ("actor_rollout_ref.actor.optim",),
    "engine": tuple(
        f"actor_rollout_ref.actor.{one}"
        for one in ("fsdp_config", "megatron", "torchtitan", "veomni")
    ),
    "checkpoint": ("actor_rollout_ref.actor.checkpoint",),
    "profiler": ("actor_rollout_ref.actor.profiler",),
}
"""The sections of sft_trainer, whose rows are those of the one model that it trains."""
_LENGTHS: Final = {f"data.max_{part}_length": "data.max_length" for part in ("prompt", "response")}


def find(name: str) -> Key | None:
    """Return the row of a key, or that of a pattern with the key."""
    # Of all choices of Hydra's groups, such as actor@actor_rollout_ref.actor, one key has the row.
    return _find("model_engine" if "@" in name or name in _OF_SFT else _in_full(name))


def _in_full(name: str) -> str:
    """Return the full name of a key of sft_trainer; others unchanged."""
    section, _, rest = name.partition(".")
    full = [f"{one}.{rest}" for one in _OF_SFT.get(section, ()) if rest]
    full.sort(key=lambda one: one not in rows())  # names before patterns
    return next((one for one in full if _find(one) is not None), name)


def in_sft(name: str) -> str:
    """Return the name that sft_trainer has of a key of main_ppo's."""
    full = {one: section for section, found in _OF_SFT.items() for one in found}
    above = next((one for one in sorted(full, reverse=True) if name.startswith(f"{one}.")), None)
    return _LENGTHS.get(name, name) if above is None else full[above] + name.removeprefix(above)


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


def _line(prefix: str, text: str) -> Line:
    names, default, how, remark = (part.strip() for part in f"{text} |||".split("|", 3))
    keys = tuple(f"{prefix}{key}" for part in names.split() for key in _each(part))
    is_field = names.startswith("(")
    return Line(prefix, (names,) if is_field else keys, default, how, remark.strip(" |"))


def _each(text: str) -> Iterator[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`."""
    above, _, rest = text.partition("{")
    inner, _, below = rest.partition("}")
    yield from (f"{above}{name}{below}" for name in inner.split(","))


def _row_of(name: str) -> Row:
    """Return the row of `foreign_names` for a key, or for its nearest parent."""
    words = name.removesuffix(".*").split(".")
    above = (suggestions.foreign_field(words[:length]) for length in range(len(words), 0, -1))
    row = next((row for row in above if row is not None), None)
    assert row is not None, f"{name}: no row in foreign_names"
    return row
