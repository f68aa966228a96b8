"""Strict reader of YAML manifests: it refuses text that YAML parsers read differently.

kubectl reads YAML 1.1, most Python tools YAML 1.2, and a job must mean the same to both. So `no` (a
boolean or a string), `010` (8 or 10), `1_000` and `1:30` (90) must be quoted or rewritten, and the
writer quotes them. Duplicate keys, tags, tabs and invisible characters are refused, all with
`file:row:column`.
"""

import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter

from ppojob_api.problem import ABSENT, Problem, ReasonCode, printable, shown
from ppojob_api.run_layout import JOB_FILE
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.well_known import MANIFEST_BYTES_LIMIT

DEPTH_LIMIT: Final = 32
NODE_LIMIT: Final = 20_000
LINE_WIDTH: Final = 100
FORBIDDEN_CHARACTERS_SHOWN: Final = 20
STDIN_NAME: Final = "<stdin>"

_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb]"
)
_NULL = re.compile(r"(~|null|Null|NULL)?")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_YAML_1_1_BOOLEAN = re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF")
_YAML_1_1_NUMBER = re.compile(
    r"[-+]?(0[0-9_]+|0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
    r"|[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|0[0-9]+\.[0-9]*([eE][-+]?[0-9]+)?)"
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file that was read; `name` is its name in messages."""

    name: str
    value: JsonValue  # the document, or None if it could not be read
    problems: tuple[Problem, ...]  # problems of the file itself, in the order of the text
    # Paths of values in `problems`, which are not checked as fields again.
    doubtful: tuple[tuple[str | int, ...], ...] = ()


def display_name(path: str) -> str:
    """The name of a file in messages."""
    return STDIN_NAME if path == "-" else printable(path)


def read_file(path: str) -> Manifest:
    """Read a manifest; `-` is standard input. Reads no more than the limit of a manifest."""
    name = display_name(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MANIFEST_BYTES_LIMIT + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MANIFEST_BYTES_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        of_run = Path(path) / JOB_FILE if isinstance(error, IsADirectoryError) else None
        allowed = "a readable YAML file"
        if of_run is not None and of_run.is_file():
            allowed = f"the job of this run is {printable(str(of_run))}"
        problem = Problem(name, ABSENT, f"cannot be read ({why})", allowed, ReasonCode.UNREADABLE)
        return Manifest(name, None, (problem,))
    if path.endswith(".sh"):
        allowed = f"ppojob from-verl {name} > job.yaml makes one of a script of verl's"
        problem = Problem(name, "a shell script", "a job is YAML", allowed, ReasonCode.BAD_FORM)
        return Manifest(name, None, (problem,))
    return read_bytes(data, name)


def read_bytes(data: bytes, name: str) -> Manifest:
    """Parse a manifest; `name` is its name in messages."""
    problem = _unfit_bytes(data, name)
    if problem is not None:
        return Manifest(name, None, (problem,))
    text = data.decode("utf-8").removeprefix("\ufeff")
    problems = list(islice(_forbidden_characters(text, name), FORBIDDEN_CHARACTERS_SHOWN))
    if problems:
        return Manifest(name, None, tuple(problems))
    reader = _Reader(name, text.count("\n") + 1)
    value = reader.read(text)
    return Manifest(name, value, tuple(reader.problems), tuple(reader.doubtful))


def dump(job: PPOJob) -> str:
    """A job as a manifest that `read_bytes` reads back, without its status."""
    return to_yaml(job.model_dump(mode="json", exclude={"status"}))


def to_yaml(value: Any) -> str:
    """Plain values as YAML that every parser reads the same; keys keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = LINE_WIDTH
    yaml.allow_unicode = False
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue()


class _Representer(SafeRepresenter):
    """Quotes text that some parser reads as another type; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(representer: SafeRepresenter, text: str) -> ScalarNode:
    doubtful = _YAML_1_1_BOOLEAN.fullmatch(text) or _YAML_1_1_NUMBER.fullmatch(text)
    style = '"' if doubtful or not text.isprintable() else None
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Representer.add_representer(str, _represent_text)


def _unfit_bytes(data: bytes, name: str) -> Problem | None:
    if len(data) > MANIFEST_BYTES_LIMIT:
        return Problem(
            name,
            f"more than {MANIFEST_BYTES_LIMIT} bytes",
            "the file is too large for a Kubernetes object",
            f"at most {MANIFEST_BYTES_LIMIT} bytes",
            ReasonCode.TOO_LARGE,
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        rows = data[: error.start].split(b"\n")
        return Problem(
            f"{name}:{len(rows)}:{len(rows[-1]) + 1}",
            f"byte 0x{data[error.start]:02x}",
            "the file is not UTF-8",
            "text in UTF-8",
            ReasonCode.NOT_UTF8,
        )
    return None


def _forbidden_characters(text: str, name: str) -> Iterator[Problem]:
    for match in _FORBIDDEN.finditer(text):
        rows = text[: match.start()].split("\n")
        yield Problem(
            f"{name}:{len(rows)}:{len(rows[-1]) + 1}",
            f"the character U+{ord(match.group()):04X}",
            "control, bidirectional and invisible characters hide what a manifest says",
            'remove it, or write it as an escape between double quotes ("\\u...")',
            ReasonCode.FORBIDDEN_CHARACTER,
        )


class _Stop(Exception):  # noqa: N818 - ends the reading, is no error of its own
    """The rest of the text cannot be read."""


@dataclass(slots=True)
class _Reader:
    """Converts ruamel's nodes to plain values, and collects problems with their position."""

    name: str
    num_rows: int
    problems: list[Problem] = field(default_factory=list)
    doubtful: list[tuple[str | int, ...]] = field(default_factory=list)
    num_nodes: int = 0

    def read(self, text: str) -> JsonValue:
        """The first document; several documents or none are a problem."""
        yaml = YAML(typ="safe", pure=True)
        # An anchor may be defined again.
        yaml.composer.warn_double_anchors = False
        try:
            documents = list(yaml.compose_all(text))
            if not documents:
                self._problem(None, ABSENT, "the file is empty", "one PPOJob", ReasonCode.EMPTY)
                return None
            value = self._value(documents[0], ())
        except _Stop:
            return None
        except MarkedYAMLError as error:
            self._malformed(error)
            return None
        except RecursionError:
            got, why = f"far more than {DEPTH_LIMIT} levels", "nested too deeply"
            self._problem(None, got, why, "plain nested YAML", ReasonCode.UNSUPPORTED_YAML)
            return None
        except (YAMLError, ValueError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._problem(None, ABSENT, why, "well-formed YAML", ReasonCode.MALFORMED_YAML)
            return None
        if len(documents) > 1:
            why, allowed = "a file holds one job, and none of these is run", "one PPOJob a file"
            got, code = f"{len(documents)} documents", ReasonCode.SEVERAL_DOCUMENTS
            self._problem(documents[1].start_mark, got, why, allowed, code)
        return value

    def _value(self, node: Node, path: tuple[str | int, ...]) -> JsonValue:
        """The value of a node; each alias of an anchor gets a copy."""
        self._count(node)
        if len(path) > DEPTH_LIMIT:
            self._unsupported(node, f"more than {DEPTH_LIMIT} levels", "nested too deeply")
        if node.ctag.handle is not None:
            self._unsupported(node, f"the tag {node.tag}", "tags mean nothing to Kubernetes")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: tuple[str | int, ...]) -> JsonValue:
        rows: dict[str, int] = {}
        items: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            value = self._value(value_node, (*path, key))
            if key in rows:
                self.doubtful.append((*path, key))
                why = f"the key is in line {rows[key]} already"
                mark, code = key_node.start_mark, ReasonCode.DUPLICATE_KEY
                self._problem(mark, shown(key), why, "each key once", code)
                continue
            rows[key] = key_node.start_mark.line + 1
            items[key] = value
        return items

    def _key(self, node: Node, path: tuple[str | int, ...]) -> str:
        if not isinstance(node, ScalarNode):
            why = "keys are words, and text that begins with a brace stands in quotes"
            self._unsupported(node, "a list or an object", why)
        self._count(node)
        # Keys are always text, never numbers or booleans.
        if node.style is None and _YAML_1_1_BOOLEAN.fullmatch(node.value):
            self._ambiguous(node, path)
        return str(node.value)

    def _scalar(self, node: ScalarNode, path: tuple[str | int, ...]) -> JsonValue:
        text = str(node.value)
        # Quoted and block scalars are always text.
        if node.style is not None:
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return _TRUE.fullmatch(text) is not None
        if _NOT_FINITE.fullmatch(text):
            return float(text.replace(".", ""))
        if _INTEGER.fullmatch(text) and len(text) <= 4_000:
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _YAML_1_1_BOOLEAN.fullmatch(text) or _YAML_1_1_NUMBER.fullmatch(text):
            self._ambiguous(node, path)
        return text

    def _ambiguous(self, node: ScalarNode, path: tuple[str | int, ...]) -> None:
        text = str(node.value)
        if _YAML_1_1_BOOLEAN.fullmatch(text):
            why, allowed = "some YAML readers take it for a boolean", "true, false or quotes"
        else:
            why = "YAML readers differ about the number that this is"
            allowed = "a plain decimal number or quotes"
        mark = node.start_mark
        self.doubtful.append(path)
        self._problem(mark, text, why, f"write {allowed}", ReasonCode.AMBIGUOUS_SCALAR)

    def _count(self, node: Node) -> None:
        self.num_nodes += 1
        if self.num_nodes > NODE_LIMIT:
            self._unsupported(node, f"more than {NODE_LIMIT} values", "too many values")

    def _unsupported(self, node: Node, got: str, why: str) -> NoReturn:
        mark = node.start_mark
        self._problem(mark, got, why, "plain nested YAML", ReasonCode.UNSUPPORTED_YAML)
        raise _Stop

    def _malformed(self, error: MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        why = str(error.problem or error.context or "it is not YAML")
        if "'\\t'" in why:
            why, got, allowed = "YAML is not indented by tabs", "a tab", "spaces"
        else:
            got, allowed = "malformed YAML", "well-formed YAML"
            begin = error.context_mark
            if begin is not None and mark is not None and begin.line < mark.line:
                why += f", {error.context} that begins in line {begin.line + 1}"
        self._problem(mark, got, why, allowed, ReasonCode.MALFORMED_YAML)

    def _problem(
        self, mark: StringMark | None, got: str, why: str, allowed: str, code: ReasonCode
    ) -> None:
        row, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        where = f"{self.name}:{min(row, self.num_rows)}:{column}"
        self.problems.append(Problem(where, got, " ".join(why.split()), allowed, code))
