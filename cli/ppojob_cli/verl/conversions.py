"""Conversion of verl's settings to a job, key by key by the table."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Final

from ppojob_api.foreign_names import NOT_NEEDED, NOT_YET
from ppojob_api.problem import shown
from ppojob_cli.verl import (
    adapters,
    algorithm,
    asynchronous,
    offload,
    optimizers,
    recipes,
    surroundings,
    trainers,
    unread,
)
from ppojob_cli.verl import keys as table
from ppojob_cli.verl.draft import NOWHERE, OFF, Draft, Fate, Outcome, Verl, lost, takes_text
from ppojob_cli.verl.keys import Key
from ppojob_cli.verl.settings import Settings, resolved

Conversion = Callable[[Verl, Draft], None]

_MODULES: Final = (
    surroundings,
    adapters,
    asynchronous,
    algorithm,
    optimizers,
    recipes,
    offload,
)
CONVERSIONS: Final[Mapping[str, Conversion]] = {
    name: one
    for module in _MODULES
    for name, one in inspect.getmembers(module, inspect.isfunction)
    if one.__module__ == module.__name__
    and not name.startswith("_")
    and [*inspect.signature(one).parameters] == ["verl", "job"]
}
"""Functions of a draft by the word that the table has for them: their name; others are private."""

_NAMES: Final = ("name", "project")
"""Conversions of names, which tell themselves what of them was not read."""
_VARIABLE: Final = re.compile(
    r"\$(?:\{(\w+)(?::\?.*)?\}|(\w+))$|for (\w+) in\b(?: ([\w./-]+)(?!\S))?"
)
_MARKDOWN: Final = re.compile(r"\[([^]]+)\]\([^)]+\)|`")
_KEPT: Final = Outcome(Fate.SAME)
_LEFT: Final = (Fate.LEFT_OUT, Fate.LOST)


def convert(settings: Settings) -> Draft:
    """Convert settings to a job, with the outcome of each key."""
    trainer = trainers.of_keys(settings.given, settings.trainer)
    verl = Verl(
        resolved(settings, {**table.defaults(), **trainer.defaults}), trainer, settings.home
    )
    job = Draft(verl)
    done = set[str]()
    for key in table.rows().values():
        if key.how in CONVERSIONS and key.how not in done:
            done.add(key.how)
            CONVERSIONS[key.how](verl, job)
        elif key.how not in CONVERSIONS:
            _copy(verl, job, key)
    job.check()
    # Those that others belong to first.
    for typed in sorted(verl.typed, key=lambda one: getattr(table.find(one), "other", "") != ""):
        job.outcomes[typed] = _outcome(verl, job, typed)
    return job


def _copy(verl: Verl, job: Draft, key: Key) -> None:
    is_given = verl.is_given(key.name)
    if key.row.status or key.name.endswith(".*"):
        return
    if key.how == "positive":
        value = verl[key.name]
        job.set(key.row.here[0], value if value > 0 else None, key.name)
    elif key.how == "" or (key.how in {"given", "speed", "given speed"} and is_given):
        job.copy(key.name)


def _outcome(verl: Verl, job: Draft, typed: str) -> Outcome:
    """Return the outcome of a key without one, or with an unknown value."""
    row = table.find(typed)
    if row is None and verl.raw(typed) is None:
        return Outcome(Fate.IDLE, "null says nothing")
    if row is None:
        near = table.nearest(typed)
        why = "no key of verl's that is known here" + (f", did you mean {near}" if near else "")
        return Outcome(Fate.UNKNOWN, why)
    target = verl.main_name(typed)
    main = table.find(target) or row
    if verl.is_hidden(typed):
        return Outcome(Fate.IDLE, "this trainer reads another key in its place")
    if target in verl.trainer.unread:
        return Outcome(Fate.IDLE, NOWHERE)
    is_other = target != typed and not verl.is_hidden(target)
    if is_other and target in verl.typed and verl.raw(typed) != verl.raw(target):
        fate = Fate.IDLE if verl.raw(typed) is None else Fate.NOTED
        return Outcome(fate, f"another name of {target}, whose value counts")
    outcome = job.outcomes.get(typed) or _fate(verl, job, main, typed)
    if verl.is_unlike(target) and outcome.fate in {Fate.SAME, Fate.WRITTEN}:
        like = "a number" if main.default is None else shown(main.default)
        fate = Fate.REPLACED if main.changes_numbers else Fate.LEFT_OUT
        outcome = Outcome(fate, f"verl has {like} there")
    source = next(unread.marks(verl.raw(typed)), None)
    quiet = {Fate.UNNEEDED, Fate.IDLE, Fate.LEFT_OUT}
    if source is None or outcome.fate in quiet or main.how in _NAMES:
        return outcome
    found = _VARIABLE.match(source[1]) if source[0] else None
    help_ = f" (--env {found[1] or found[2]}=VALUE)" if found and not found[3] else ""
    if found and found[3]:
        help_ = f" (--env {found[3]}={found[4] or 'VALUE'} for one pass of the loop)"
    fate = Fate.UNREAD if takes_text(main) else Fate.REPLACED
    return Outcome(fate, f"{unread.place(*source)} was not read{help_}")


def _fate(verl: Verl, job: Draft, row: Key, typed: str) -> Outcome:
    if row.how.startswith("with "):
        if not verl.is_on(row.other):
            return Outcome(Fate.IDLE, f"it says nothing where {row.other} is off")
        if any(job.outcomes.get(one, _KEPT).fate in _LEFT for one in verl.same(row.other)):
            return Outcome(Fate.IDLE, f"it belongs to {row.other}, which is left out")
    if row.how == "only":
        is_kept = _is_default(row, verl.raw(typed))
        return _KEPT if is_kept else Outcome(Fate.LOST, _MARKDOWN.sub(r"\1", row.remark))
    if row.how in CONVERSIONS:
        if _is_default(row, verl.raw(typed)):
            return _KEPT
        return Outcome(Fate.IDLE, "the other settings do not use it")
    if row.row.status == NOT_NEEDED or row.how == "nothing":
        return Outcome(Fate.UNNEEDED, row.row.remark or row.remark)
    if row.row.status == NOT_YET and not _is_default(row, verl.raw(typed)):
        if switch := _switch_that_is_off(verl, typed):
            return Outcome(Fate.IDLE, f"it says nothing where {switch} is off")
        return lost(
            row.name, f"not in this version{f' ({row.row.remark})' if row.row.remark else ''}"
        )
    return _KEPT


def _switch_that_is_off(verl: Verl, typed: str) -> str | None:
    """Return the given key that switches off one of the sections of a key."""
    words = typed.split(".")
    sections = (".".join(words[:length]) for length in range(1, len(words)))
    switches = (f"{section}.{word}" for section in sections for word in ("enable", "enabled"))
    return next((one for one in switches if one in verl.typed and not verl.is_on(one)), None)


def _is_default(row: Key, value: object) -> bool:
    if row.default is not None and value is not None:
        return value == row.default
    # Of a size of some parallelism 1 is none.
    is_one = value == 1 and value is not True
    return value in OFF or value == {} or (not row.changes_numbers and is_one)
