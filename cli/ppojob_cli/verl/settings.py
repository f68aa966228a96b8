"""verl's settings by their full keys, of Hydra's overrides and of YAML.

Values are read as Hydra reads them, but for `${...}`, which is followed where its key is known. The
last value of a key counts.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_cli.verl import unread
from ppojob_cli.verl.trainers import Trainer

_OVERRIDE: Final = re.compile(
    r"(?P<sign>\+\+|\+|~)?(?P<key>[\w$.@/-]+)(?:=(?P<value>.*))?", re.DOTALL
)
_OPTION: Final = re.compile(r"--?[\w-]+(=.*)?", re.DOTALL)
_WITH_VALUE: Final = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
_CONFIG: Final = re.compile(r"--?(?:config-|c)(?P<what>name|path|n|p)=(?P<value>.*)", re.DOTALL)
_OWN_NAME: Final = re.compile(
    r"(fully_async_|one_step_off_)?ppo(_\w+)?_trainer(\.ya?ml)?|dapo(_\w+)?_trainer(\.ya?ml)?"
)
"""Of verl's own configurations, whose defaults are in the table of keys."""
_FOLDER: Final = "verl/trainer/config"
"""Where configurations are that come without a folder, from where verl is."""
_REFERENCE: Final = re.compile(r"\$\{(?:oc\.select:|)(?P<key>\.*[\w.]+)(?:,(?P<other>[^${}]*))?\}")
_OTHER_REFERENCE: Final = re.compile(r"\$\{[^}]*\}?")
_MISSING: Final = "???"
_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Given:
    """A given value, and its place."""

    value: JsonValue
    where: str  # `run.sh:12`, or empty for the command line


@dataclass(slots=True)
class Settings:
    """All given settings."""

    given: dict[str, Given]  # by full key, in order
    problems: list[Problem]  # arguments that are not settings
    trainer: Trainer | None = None  # the trainer that a script calls, if known
    home: str = field(default_factory=lambda: os.path.expanduser("~"))  # of ~ in paths

    def add(self, others: "Settings") -> None:
        for key, one in others.given.items():
            self.given.pop(key, None)
            self.given[key] = one
        self.problems += others.problems


def of_overrides(arguments: Iterable[tuple[str, str]]) -> Settings:
    """Read `key=value`, `+key=value`, `++key=value` and `~key`, each with the place it is from.

    A configuration of one's own that the options of Hydra's name counts before them.
    """
    settings, config = Settings({}, []), {"p": _FOLDER}
    skips, option, place = False, "", ""
    for text, where in arguments:
        found = _OVERRIDE.fullmatch(text)
        named = _CONFIG.fullmatch(f"{option}={text}" if skips else text)
        if named is not None:
            config[named["what"][0]], place = named["value"], where
        if skips or (_OPTION.fullmatch(text) and not (found and found["value"])):
            # An option of Hydra's, or the value of one.
            skips, option = text in _WITH_VALUE, text
        elif text.startswith("-") and _OPTION.fullmatch(text):
            skips = False
        elif found is None or (found["value"] is None and found["sign"] != "~"):
            settings.problems.append(_no_setting(text, where))
        else:
            key, value = found["key"], found["value"]
            for old in [old for old in settings.given if old == key or old.startswith(f"{key}.")]:
                del settings.given[old]
            read = None if found["sign"] == "~" else value_of(value or "")
            for leaf, one in _leaves(key, read):
                settings.given[leaf] = Given(one, where)
    if "n" not in config or _OWN_NAME.fullmatch(config["n"]):
        return settings
    whole = _of_config(config["p"], config["n"], place)
    whole.add(settings)
    return whole


def _of_config(folder: str, name: str, where: str) -> Settings:
    """Return the settings of a custom configuration, on top of verl's defaults."""
    path = unread.told(str(PurePosixPath(folder, name)))
    path = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
    try:
        return of_yaml(read_text(path), path)
    except ValueError as problem:
        place = ": ".join(filter(None, (where, "--config-name")))
        why = f"{problem}, so its settings are missing"
        allowed = "run it in the folder to which --config-path is relative, or add each KEY=VALUE"
        return Settings({}, [Problem(place, shown(path), why, allowed, ReasonCode.UNREADABLE)])


def _no_setting(text: str, where: str) -> Problem:
    source, place = unread.told(text), ": ".join(filter(None, (where, "argument")))
    why, allowed = "it is no setting", "KEY=VALUE"
    if source != text:
        why = "it was not decided, and whether there are more settings hangs on it"
        allowed = "KEY=VALUE for those that there are"
    return Problem(place, shown(source), why, allowed, ReasonCode.BAD_FORM)


def of_yaml(text: str, name: str) -> Settings:
    """Read a full or partial configuration; a `ValueError` if it is no YAML, or no mapping.

    Also Hydra's overrides.yaml, a list of them, and the config.yaml of a run of Weights & Biases,
    where each section is the `value` of a mapping.
    """
    try:
        tree = _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise ValueError(f"line {line}: {error.problem or error.context}") from None
    except (YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    if isinstance(tree, list) and all("=" in str(one) for one in tree):
        return of_overrides((str(one), name) for one in tree)
    if not isinstance(tree, dict):
        raise ValueError("it is no mapping of keys to values")
    if "wandb_version" in tree or "_wandb" in tree:
        tree = {
            key: one["value"]
            for key, one in tree.items()
            if isinstance(one, dict) and "value" in one and key != "_wandb"
        }
    given = {
        key: Given(value, name)
        for key, value in _leaves("", _plain(tree))
        if value != _MISSING and key.rpartition(".")[2] != "_target_"
    }
    return Settings(given, [])


def resolved(settings: Settings, defaults: Mapping[str, JsonValue]) -> dict[str, Given]:
    """Resolve `${...}` in the settings, with marks for unknown values."""
    return {
        key: replace(one, value=_resolved(key, one.value, settings.given, defaults, _DEPTH))
        for key, one in settings.given.items()
    }


def _resolved(
    key: str,
    value: JsonValue,
    given: Mapping[str, Given],
    defaults: Mapping[str, JsonValue],
    depth: int,
) -> JsonValue:
    if isinstance(value, list):
        return [_resolved(key, item, given, defaults, depth) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def follow(found: re.Match[str]) -> JsonValue:
        target = _absolute(key, found["key"])
        if depth and target in given:
            return _resolved(target, given[target].value, given, defaults, depth - 1)
        if target in defaults:
            return defaults[target]
        if found["other"] is not None:
            return value_of(found["other"].strip())
        return unread.mark(0, found[0])

    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return follow(whole)
    text = _REFERENCE.sub(lambda found: str(follow(found)), value)
    return _OTHER_REFERENCE.sub(lambda found: unread.mark(0, found[0]), text)


def _absolute(key: str, target: str) -> str:
    """Return the full key of a reference; each leading dot is a level up."""
    levels = len(target) - len(target.lstrip("."))
    above = key.split(".")[:-levels] if levels else []
    return ".".join([*above, target.lstrip(".")])


def value_of(text: str) -> JsonValue:
    """Parse a value as Hydra does: YAML in one line, else text."""
    spaced = re.sub(r"([{,]\s*[\w.-]+):(?=[^\s/])", r"\1: ", text) if text.startswith("{") else text
    if re.match(r"[\w/~.-]*: ", text) or re.fullmatch(r"0\d+|\d+(_\d+)+", text):
        return text
    try:
        return _plain(_yaml().load(spaced))
    except (YAMLError, ValueError):
        return text


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _plain(value: Any) -> JsonValue:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _leaves(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if not isinstance(value, dict) or not value:
        if key and value != {}:
            yield key, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{key}.{name}" if key else name, inner)


def read_text(path: str) -> str:
    """Read the text of a file; a `ValueError` if that is impossible."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot be read ({why})") from None
