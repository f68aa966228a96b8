"""Rules of a job, and CEL that many rules share."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from string import Template
from typing import Any, Final

from pydantic.alias_generators import to_snake

from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.rules import cel
from ppojob_api.shape import Member, PathKey, at, members, members_at

_HEAD: Final = re.compile(r"[^|]*\|[^|]*\| *[A-Z]\w+(?: \| here)?")
_BODY: Final = re.compile(r"(.+?)(?: when: (.+?))?(?: must: (.+))?")
_VALUE: Final = re.compile(r" \$\{(.+?)\}")
_UNSET: Final = re.compile(r"\$UNSET(?:\(([\w ]+)\))?")
_ONE_OF: Final = re.compile(r"\$ONE_OF\(([\w ]+)\)")


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold in a section; checked by the API server, `ppojob validate` and the pods."""

    section: str  # Its path; `self` is the section's value. `[]` is any item of a list
    field: str  # The field that is reported, a path below the section; empty: the section
    holds: str  # CEL; true for a valid job
    # What is wrong; what is allowed. ` ${CEL}` is a value that we show in parentheses; the API
    # server omits it, since joined texts may exceed its cost limit.
    text: str
    code: ReasonCode
    when: str  # CEL; the rule applies to jobs for which it is true. Empty: to all
    # Whether the API server evaluates it too. Each rule there makes each write of a job slower, so
    # rules for rare mistakes are left to the operator.
    at_admission: bool

    @property
    def expression(self) -> str:
        """The whole rule as CEL."""
        return f"!({self.when}) || ({self.holds})" if self.when else self.holds

    @property
    def message(self) -> str:
        """The text of the API server."""
        return _VALUE.sub("", self.text)

    @property
    def is_of_edits(self) -> bool:
        """Whether it compares a job with its old version, which only the API server can."""
        return "oldSelf" in self.holds

    def reads(self) -> Iterator[str]:
        """Paths of the job that it reads; of a list always the whole."""
        for part in (self.when, self.holds):
            for path in cel.read(part).paths if part else ():
                yield f"{self.section}.{path}".strip(".").partition("[]")[0]

    def problems(
        self,
        job: Mapping[str, Any],
        told: Mapping[str, Any],
        sections: Iterable[tuple[str, Any]],
    ) -> Iterator[Problem]:
        """Problems of a job by this rule.

        Args:
            job: As plain values, with defaults and without null.
            told: The same without defaults, to show sections.
            sections: The `places` of the rule's section in the job.
        """
        holds = cel.read(self.holds)
        for section, value in sections:
            scope = {"self": value}
            if (self.when and not cel.read(self.when).value(scope)) or holds.value(scope):
                continue
            where = ".".join(filter(None, (section, self.field)))
            why, _, allowed = _with_values(self.text, scope).partition("; ")
            for place, got in self._found(where, scope, job, told):
                yield Problem(place, got, why, allowed, self.code)

    def _found(
        self, where: str, scope: cel.Scope, job: Mapping[str, Any], told: Mapping[str, Any]
    ) -> Iterable[tuple[str, str]]:
        """Place and value of each wrong item of a list or wrong key of a map, else of the field."""
        container = next((value for _, value in places(job, where)), None)
        bad_items = cel.read(self.holds).bad_items
        if bad_items is not None and isinstance(container, dict):
            return [(where, shown(key)) for _, key in bad_items(scope)]
        if bad_items is not None:
            last = {shown(item): f"{where}[{index}]" for index, item in bad_items(scope)}
            return [(place, _shown_at(place, job, told)) for place in last.values()]
        return [(where, _shown_at(where, job, told))]


def _shown_at(where: str, job: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """The value at a path; of a section only fields that are not defaults."""
    found = next((value for _, value in places(job, where)), None)
    if isinstance(found, dict):
        found = next((value for _, value in places(told, where)), {})
    return ABSENT if found is None else shown(found)


def rules(
    table: str, *, each: Iterable[Mapping[str, str]] = ({},), **macros: str
) -> tuple[Rule, ...]:
    """Read rules, a paragraph each.

    Its first line has sections, fields and the reason code, separated by `|`, and `here` for a rule
    that is not evaluated at admission. The rule applies to each of several sections or fields; a
    second such line adds others. What is wrong and what is allowed follows, then `when:` if the
    rule is not for all jobs, then `must:`. Without `must:` the field must have its default, or by
    code Required be given. A rule applies only where the optional fields that it reads are given,
    and the one that it is about, unless it asks for them by `has`.

    In it `$NAME` stands for a macro, `$SECTION` and `$FIELD` for those of the rule, `$TYPE` for the
    field in snake_case. `$UNSET` is CEL for "the field has its default", `$UNSET(a b)` for "these
    fields of the section have", `$ONE_OF(a b)` for "exactly one of these fields is given".

    Args:
        table: The paragraphs.
        each: The table is read once for each item, with these macros besides.
        macros: What each macro stands for.
    """
    return tuple(
        rule
        for own in each
        for paragraph in re.split(
            r"\n\s*\n", Template(table.strip()).safe_substitute(**own, **macros)
        )
        for rule in _rules_of(paragraph)
    )


def _rules_of(paragraph: str) -> Iterator[Rule]:
    lines = [line.strip() for line in paragraph.strip().splitlines()]
    heads = list(takewhile(_HEAD.fullmatch, lines))
    body = _BODY.fullmatch(" ".join(lines[len(heads) :]))
    assert heads, f"no section, field and code: {paragraph}"
    assert body is not None, f"no text and condition: {paragraph}"
    for head in heads:
        yield from _rules_with(head, body)


def _rules_with(head: str, body: re.Match[str]) -> Iterator[Rule]:
    sections, fields, code, *here = (part.strip() for part in head.split("|"))
    for section in sections.split() or [""]:
        for field in fields.split() or [""]:
            macros = {"SECTION": section, "FIELD": field, "TYPE": to_snake(field)}
            text, when, holds = (
                Template(part or "").safe_substitute(macros) for part in body.groups("")
            )
            unset = partial(_all_unset, section=section, field=field)
            is_needed = code == ReasonCode.REQUIRED
            holds = holds or (f"has(self.{field})" if is_needed else "$UNSET")
            holds = _ONE_OF.sub(_one_given, _UNSET.sub(unset, holds))
            given = _given(section, f"{when} {holds}" + f" self.{field}" * (not is_needed))
            when = f"({when})" if given and "||" in when else when
            when = " && ".join(filter(None, (*given, when)))
            yield Rule(section, field, holds, text, ReasonCode(code), when, not here)


def _path(section: str) -> PathKey:
    """The section's path; of a list the first item."""
    keys = section.replace("[]", ".0").split(".") if section else ()
    return tuple(int(key) if key == "0" else key for key in keys)


def _given(section: str, text: str) -> list[str]:
    """CEL that asks for the optional fields which a rule reads, but for those that it asks for."""
    asked = set(re.findall(r"has\((self[.\w]+)\)", text))
    given: list[str] = []
    root = at(_path(section))
    for path in dict.fromkeys(re.findall(r"\bself((?:\.\w+)+)", text)):
        shape, value, above = root, "self", []
        for key in path.split(".")[1:]:
            found = members(shape.model).get(key.strip("_")) if shape and shape.model else None
            if found is None:
                break
            shape, value = found.shape, f"{value}.{key}"
            above += [f"has({value})"] * shape.optional
            if shape.optional and value not in asked:
                given += above
    return list(dict.fromkeys(given))


def _all_unset(found: re.Match[str], *, section: str, field: str) -> str:
    above = _path(section)
    conditions = []
    for name in (found[1] or field).split():
        *inner, last = name.split(".")
        conditions.append(_unset(members_at((*above, *inner))[last], f"self.{name}"))
    return " && ".join(conditions)


def _one_given(found: re.Match[str]) -> str:
    return " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in found[1].split()) + " == 1"


def _unset(field: Member, value: str) -> str:
    """CEL for "this field has its default"; its numbers are written as in JSON."""
    if field.default is None:
        return f"!has({value})"
    if field.shape.model is not None:
        inner = members(field.shape.model).items()
        return " && ".join(_unset(one, f"{value}.{name}") for name, one in inner)
    if field.shape.kind in {"list", "map"} and not field.default:
        return f"{value}.size() == 0"
    if field.default is False:
        return f"!{value}"
    literal = json.dumps(field.default).replace('"', "'")
    return f"{value} == {literal}"


def _with_values(text: str, scope: cel.Scope) -> str:
    return _VALUE.sub(lambda found: f" ({cel.read(found[1]).value(scope)})", text)


def places(value: Any, path: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a path with `[]` or numbers, each with its full path; none if it is absent."""
    key, _, rest = path.partition(".")
    if not path:
        yield above, value
        return
    name, is_list, index = key.rstrip("]").partition("[")
    if name not in value:
        return
    here = f"{above}.{name}".lstrip(".")
    if not is_list:
        yield from places(value[name], rest, here)
        return
    for number, item in enumerate(value[name]):
        if index in ("", str(number)):
            yield from places(item, rest, f"{here}[{number}]")


def either(field: str, otherwise: str) -> str:
    """CEL for the value of an optional field, or a default."""
    return f"(has(self.{field}) ? self.{field} : {otherwise})"


def present(path: str) -> str:
    """CEL for "the field at this path is given"; sections on the way may be optional."""
    keys = path.split(".")
    return " && ".join(f"has(self.{'.'.join(keys[:end])})" for end in range(1, len(keys) + 1))


def words(choices: Iterable[str]) -> str:
    """CEL list of words, sorted."""
    return "[" + ", ".join(f"'{choice}'" for choice in sorted(choices)) + "]"
