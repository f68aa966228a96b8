"""Draft of a converted job: fields with their source keys, and the result for each key."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ppojob_api import shape, suggestions, validation
from ppojob_api.foreign_names import NOT_NEEDED, NOT_YET
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.well_known import API_VERSION, KIND
from ppojob_cli.verl import keys as table
from ppojob_cli.verl import trainers, unread
from ppojob_cli.verl.keys import Key
from ppojob_cli.verl.settings import Given

OFF: Final[tuple[object, ...]] = (None, False, 0, "", "disabled", "sync", [], "register")
"""Values that switch a key off."""

NOWHERE: Final = "this trainer reads it nowhere"

_REPAIRS: Final = 20
_MODEL: Final = re.compile(r"(model[._]path|[._](ref|tokenizer|lora_adapter)_path)$")
"""Keys of models, tokenizers and adapters, which verl hands to from_pretrained."""
_FOLDERS: Final = ("model", "models", "checkpoints", "ckpts", "outputs", "runs")
"""Of models on a machine; no organization of the hub has such a name."""
_HUB_NAME: Final = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


class Fate(Enum):
    """Outcomes of a given key, the worst last."""

    SAME = "as it is here by default"
    UNNEEDED = "not needed"
    IDLE = "without effect"
    WRITTEN = "written"
    NOTED = ""
    LEFT_OUT = "left out, and no number depends on it"
    LOST = "left out, and numbers depend on it"
    UNREAD = "written with these words in it, which are to be replaced"
    REPLACED = "verl's default counts in its place"
    UNKNOWN = "left out"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a key, and its reason."""

    fate: Fate
    why: str = ""


def lost(key: str, why: str) -> Outcome:
    """Return the outcome of a key that this version lacks."""
    row = table.find(key)
    return Outcome(Fate.LOST if row is None or row.changes_numbers else Fate.LEFT_OUT, why)


class Verl:
    """verl's settings for conversions: given values, else verl's defaults."""

    def __init__(
        self,
        given: Mapping[str, Given],
        trainer: trainers.Trainer = trainers.MAIN_PPO,
        home: str = "~",
    ) -> None:
        self.trainer = trainer
        self._home = home
        self.engine = trainers.engine_of({key: one.value for key, one in given.items()})
        self._defaults = {**trainer.defaults, **trainers.ENGINES.get(self.engine, {})}
        self._as_typed = dict(given)
        # A key that the trainer reads by another name hides the key of that name.
        self._given = {key: given[key] for key in given if key not in trainer.names}
        self._given |= {trainer.names[key]: given[key] for key in given if key in trainer.names}
        self.typed = tuple(given)
        for key in self.typed:
            self._given.setdefault(self.main_name(key), given[key])
        self._given = {
            key: one
            for key, one in self._given.items()
            if self.main_name(key) not in trainer.unread
        }

    def __getitem__(self, key: str) -> Any:
        """Return the value; an unknown one as in the script, or verl's default."""
        row = table.find(key)
        default = self._defaults.get(key, None if row is None else row.default)
        if isinstance(default, str) and (other := re.fullmatch(r"\$\{(.+)\}", default)):
            default = self[other[1]]
        value = self._given[key].value if key in self._given else None
        if value is None or self.is_unlike(key):
            return self._at_home(default)
        if not any(unread.marks(value)):
            value = self._at_home(value)
            return _of_hub(value) if _MODEL.search(key) else value
        return unread.told_in(value) if takes_text(row) else default

    def is_unlike(self, key: str) -> bool:
        """Return whether verl's default is a number or boolean, and the given value is not."""
        row, value = table.find(key), self.raw(key)
        if row is None or value is None or any(unread.marks(value)):
            return False
        if isinstance(row.default, bool):
            return not isinstance(value, bool)
        return takes_numbers(row) and not _is_number(value)

    def main_name(self, key: str) -> str:
        return self.trainer.names.get(key) or table.main_name(key)

    def raw(self, key: str) -> JsonValue:
        """Return the given value, with marks of unknown parts; else None."""
        given = self._given.get(key) or self._as_typed.get(key)
        return None if given is None else given.value

    def is_given(self, key: str) -> bool:
        """Return whether a key was given and is not null; unknown values count."""
        is_there = key in self._given and self._given[key].value is not None
        return is_there and self[key] is not None

    def below(self, key: str) -> dict[str, Any]:
        """Return the values below a key that were given and are not null."""
        prefix = f"{key}."
        found = (one for one in self._given if one.startswith(prefix) and self.is_given(one))
        return {one.removeprefix(prefix): self[one] for one in found}

    def is_on(self, key: str) -> bool:
        """Return whether a key is set, and not to a word for none."""
        if key == "critic.enable" and self[key] is None:
            return bool(self["algorithm.adv_estimator"] == "gae")
        return self[key] not in OFF

    @property
    def has_critic(self) -> bool:
        """Return whether another model is trained, too: the critic of PPO, or PRIME's model."""
        has_one = self.trainer is trainers.PRIME or self["algorithm.adv_estimator"] == "gae"
        return has_one and self.trainer not in trainers.OF_SFT and self.is_on("critic.enable")

    def same(self, key: str) -> list[str]:
        """Return the given keys, as typed, with this main name."""
        return [one for one in self.typed if self.main_name(one) == key and not self.is_hidden(one)]

    def _at_home(self, value: JsonValue) -> JsonValue:
        """Expand ~ in a path or paths, as verl does."""
        if isinstance(value, list):
            return [self._at_home(one) for one in value]
        if isinstance(value, str) and value.startswith("~/"):
            return f"{self._home}{value[1:]}"
        return value

    def is_hidden(self, key: str) -> bool:
        """Return whether a given key replaces this one for the trainer."""
        names = self.trainer.names
        return any(names.get(one) == key for one in self.typed)


def is_count(value: object) -> bool:
    """Return whether a value is an integer above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def listed(value: Any) -> list[Any]:
    """Return a list unchanged; wrap another value in one."""
    return value if isinstance(value, list) else [value]


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _of_hub(value: JsonValue) -> JsonValue:
    """Return the URL of a model of the hub, which verl's from_pretrained knows by its name."""
    if not isinstance(value, str) or not _HUB_NAME.fullmatch(value) or Path(value).exists():
        return value
    above = Path(value).parts[0]
    is_folder = above in _FOLDERS or Path(above).is_dir()
    return value if is_folder else f"hf://{value}"


def takes_numbers(row: Key) -> bool:
    """Return whether a key takes numbers, by its default, else by its field."""
    if row.default is None:
        return _kind(row) in {"integer", "number"}
    return isinstance(row.default, int | float) and not isinstance(row.default, bool)


def takes_text(row: Key | None) -> bool:
    """Return whether the field of a key takes text, such as that of an unknown value."""
    if row is not None and isinstance(row.default, int | float):  # or a boolean
        return False
    return row is None or _kind(row) not in {"integer", "number", "boolean", "enum"}


def _kind(row: Key) -> str:
    """Return the type of the field of a key; empty if it has none."""
    field = row.row.here[0] if row.row.here else ""
    found = shape.at(tuple(field.replace("[]", ".0").split("."))) if field else None
    return "" if found is None else found.kind


@dataclass(slots=True)
class Written:
    """A field, and the keys that set it; none for defaults of verl."""

    value: Any
    keys: list[str]
    of_default: list[str]


@dataclass(slots=True)
class Draft:
    """The fields of a job by path."""

    verl: Verl
    fields: dict[str, Written] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by key as typed
    # Problems of the job in its current state.
    problems: list[Problem] = field(default_factory=list)

    def word(self, path: str, key: str) -> Any:
        """Return the value of a key, translated for a field."""
        return _word(path, self.verl[key])

    def set(self, path: str, value: Any, *keys: str) -> None:
        """Set a field, unless the value is its default."""
        *above, last = path.split(".")
        member = shape.members_at(tuple(above))[last]
        word = _word(path, value)
        if isinstance(word, str) and word in {NOT_YET, NOT_NEEDED}:
            row = suggestions.foreign_word(path, str(value))
            remark = "" if row is None else row.remark
            why = remark or f"not in this version, {shown(member.default)} in its place"
            self._lose(keys, why, is_lost=word == NOT_YET)
            return
        if word is None or (not member.required and word == member.default):
            self.keep(*keys)
            return
        given = [key for key in keys if self.verl.is_given(key)]
        typed = [one for key in given for one in self.verl.same(key)]
        before = self.fields.get(path)
        self.fields[path] = Written(word, typed, [key for key in keys if key not in given])
        self._tell(tuple(given), Outcome(Fate.WRITTEN, path))
        for key in () if before is None else before.keys:
            if key not in typed and self.outcomes[key] == Outcome(Fate.WRITTEN, path):
                self.outcomes[key] = Outcome(Fate.IDLE, f"{keys[0]} decides there")

    def copy(self, key: str, path: str | None = None) -> None:
        self.set(path or _field_of(key), self.verl[key], key)

    def write(self, value: Any, key: str, *others: str) -> None:
        """Set the field of a key to another value, which further keys determine."""
        self.set(_field_of(key), value, key, *others)

    def own_pods(self, role: str, switch: str, nodes: str, gpus: str) -> None:
        """Give a role pods of its own, by the keys of their number and of their GPUs."""
        self.set(f"spec.roles.{role}.colocateWith", "none", switch)
        self.set(f"spec.roles.{role}.replicas", self.verl[nodes] or 1, nodes)
        self.copy(gpus, f"spec.roles.{role}.gpusPerReplica")

    def keep(self, *keys: str) -> None:
        """Report that keys have the value of our default."""
        self._tell(keys, Outcome(Fate.SAME))

    def note(self, why: str, *keys: str) -> None:
        self._tell(keys, Outcome(Fate.NOTED, why))

    def leave_out(self, why: str, *keys: str, changes_numbers: bool = True) -> None:
        """Report that keys are not converted."""
        self._lose(keys, why, is_lost=changes_numbers)

    def _lose(self, keys: tuple[str, ...], why: str, *, is_lost: bool) -> None:
        for key in keys:
            self._tell((key,), lost(key, why) if is_lost else Outcome(Fate.LEFT_OUT, why))

    def _tell(self, keys: tuple[str, ...], outcome: Outcome) -> None:
        """Record an outcome of keys, as typed; the worst one counts."""
        order = list(Fate)
        for typed in (one for key in keys for one in self.verl.same(key)):
            before = self.outcomes.get(typed)
            if before is None or order.index(before.fate) <= order.index(outcome.fate):
                self.outcomes[typed] = outcome

    def tree(self) -> dict[str, Any]:
        """Return the job as plain values, in the order of the models."""
        tree: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
        for path, _ in shape.fields():
            if path in self.fields:
                *above, last = path.split(".")
                place = tree
                for name in above:
                    place = place.setdefault(name, {})
                value = self.fields[path].value
                place[last] = dict(value) if value == {} else value
        return tree

    def check(self) -> None:
        """Validate the job; drop fields without effect, and unsupported ones."""
        for _ in range(_REPAIRS):
            judged = validation.validate(self.tree())
            self.problems = judged if isinstance(judged, list) else []
            dropped = list(map(self._dropped, self.problems))
            if not any(dropped):
                return

    def _dropped(self, problem: Problem) -> bool:
        written = self.fields.get(problem.where)
        code = problem.reason_code
        if written is None or code not in {ReasonCode.NO_EFFECT, ReasonCode.NOT_IN_THIS_VERSION}:
            return False
        del self.fields[problem.where]
        for key in written.keys:
            is_idle, why = code == ReasonCode.NO_EFFECT, f"{problem.where}: {problem.why}"
            self.outcomes[key] = Outcome(Fate.IDLE, problem.why) if is_idle else lost(key, why)
        return True

    def origins(self, path: str) -> Iterator[str]:
        """Return the keys of a field for a comment, `KEY=VALUE` where a value is not as written."""
        written = self.fields.get(path)
        if written is None:
            return
        for key in written.keys:
            yield f"{key}{_unlike(self.verl.raw(key), written.value)}"
        called = {main: name for name, main in self.verl.trainer.names.items()}
        for key in written.of_default:
            name = table.in_sft(key) if self.verl.trainer in trainers.OF_SFT else key
            value = self.verl[key]
            yield f"{called.get(key, name)}{_unlike(value, written.value)} by default"


def _unlike(given: JsonValue, value: Any) -> str:
    """Return `=GIVEN` for a comment, unless it is the value of the field, or one is no scalar."""
    if not all(isinstance(one, str | int | float) for one in (given, value)) or given == value:
        return ""
    told = [unread.told(str(one)) for one in (given, value)]
    if all(isinstance(one, str) for one in (given, value)):
        told = list(map(suggestions.folded, told))
    text = shown(unread.told_in(given)).strip('"')
    return "" if told[0] == told[1] else f"={text}"


def _field_of(key: str) -> str:
    row = table.find(key)
    assert row is not None, f"{key}: no row of the table"
    return row.row.here[0]


def _word(path: str, value: Any) -> Any:
    """Return our name of a value; NOT_YET or NOT_NEEDED if there is none."""
    found = shape.at(tuple(path.split(".")))
    if found is None or not found.choices or not isinstance(value, str | bool):
        return value
    word = suggestions.folded(str(value))
    for choice in found.choices:
        if suggestions.folded(choice) == word:
            return choice
    row = suggestions.foreign_word(path, str(value))
    if row is None:
        return value
    return row.status or row.here[0]
