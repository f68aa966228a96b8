"""A launch script of verl's, read and not run: what its call of a trainer is given.

Assignments, arrays, defaults, arithmetic and conditions on known values are followed. What cannot
be known without a run is marked where it would stand, with its line.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tree_sitter import Node

from ppojob_cli.verl import unread
from ppojob_cli.verl.shell_words import Variable, Words, line_of, parsed, source_of

MAIN: Final = re.compile(
    r"(?:[\w./]*[./])?(?:main_ppo(?:_sync|_v0|_format)?|main_dapo|main_entropy|main_prime"
    r"|main_flowrl|gvpo_main_ppo|spo_main_ppo|fully_async_main|main_generation_server|(?:fsdp_)?sft_trainer(?:_ray)?)(?:\.py)?"
)
_DECLARE: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_TORCHRUN: Final = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}
"""Options of torchrun, which decide what the keys of sft_trainer say besides."""
_ALL: Final = (
    *("program", "compound_statement", "do_group", "else_clause", "pipeline"),
    *("variable_assignments", "declaration_command"),
)
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the call, and the line that it stands in."""

    text: str
    line: int


@dataclass(slots=True)
class Launch:
    """A call of a trainer."""

    module: str
    line: int
    arguments: list[Argument] = field(default_factory=list)


@dataclass(slots=True)
class Script:
    """What was read."""

    # Calls of main_ppo, in the order of the script.
    launches: list[Launch] = field(default_factory=list)
    # Lines of conditions that were not decided around further calls.
    undecided: list[tuple[int, str]] = field(default_factory=list)


class _EndError(Exception):
    """The script exits."""


class _ReturnError(_EndError):
    """The function returns, or the script outside of functions."""


def read_script(text: str, name: str, variables: Mapping[str, str]) -> Script:
    """Read a script of that name; `variables` is what it finds in its environment."""
    root = parsed(text)
    reader = _Reader({"BASH_SOURCE": name, "0": name, "PWD": ".", **variables})
    with suppress(_EndError):
        reader.run(root)
    return reader.script


def _of_torchrun(words: list[Argument]) -> Iterator[Argument]:
    for word, behind in zip(words, [*words[1:], Argument("", 0)], strict=True):
        name, _, value = word.text.removeprefix("--").partition("=")
        key = _TORCHRUN.get(name.replace("-", "_"))
        if key is not None and word.text.startswith("--"):
            yield Argument(f"{key}={value or behind.text}", word.line)


class _Reader:
    """Follows the statements of a script."""

    def __init__(self, variables: dict[str, Variable]) -> None:
        self.script = Script()
        self._words = Words(variables)
        self._given = dict(variables)
        self._functions: dict[str, Node] = {}

    def run(self, node: Node) -> None:
        """Follow one statement, and those within it."""
        follow = getattr(self, f"_run_{node.type}", None)
        if follow is not None:
            follow(node)
        elif node.type in _ALL:
            self._all(node.named_children)
        elif node.type in {"redirected_statement", "negated_command"}:
            self.run(node.named_children[0])

    def _all(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.run(node)

    def _run_variable_assignment(self, node: Node) -> None:
        target, value = node.named_children[0], node.named_children[-1]
        name = re.sub(r"\[.*", "", source_of(target))
        adds = source_of(node.children[1]) == "+="
        variables = self._words.variables
        if value.type == "array":
            items = [word for item in value.named_children for word in self._words.fields(item)]
            before = variables.get(name, [])
            known = [before] if isinstance(before, str) else before
            variables[name] = [*known, *items] if adds else items
            return
        text = "" if value is target else self._words.text(value)
        before = variables.get(name, "")
        variables[name] = f"{before}{text}" if adds and isinstance(before, str) else text

    def _run_unset_command(self, node: Node) -> None:
        for name in node.named_children:
            self._words.variables.pop(source_of(name), None)

    def _run_function_definition(self, node: Node) -> None:
        self._functions[source_of(node.named_children[0])] = node.named_children[-1]

    def _run_command(self, node: Node) -> None:
        """Words, and assignments before them.

        Those are the command's alone, unless they end a line, which the grammar does not see.
        """
        parts, lines = node.named_children, source_of(node).split("\n")
        name = next((part for part in parts if part.type == "command_name"), None)
        for part in (part for part in parts if part.type == "variable_assignment"):
            behind = int(part.end_point[0]) - int(node.start_point[0])
            is_own = name is not None and part.end_point[0] == name.start_point[0]
            if not is_own and not lines[behind].endswith("\\"):
                self.run(part)
        rest = [part for part in parts if part.type not in {"variable_assignment", "file_redirect"}]
        words = [
            Argument(word, line_of(part)) for part in rest for word in self._words.fields(part)
        ]
        if words:
            self._called([word for word in words if word.text])

    def _called(self, words: list[Argument]) -> None:
        name = words[0].text if words else ""
        at = next((i for i, word in enumerate(words) if MAIN.fullmatch(word.text)), None)
        if name in _DECLARE:
            for word in words[1:]:
                if (found := _ASSIGNED.fullmatch(word.text)) is not None:
                    self._words.variables[found[1]] = found[3]
        elif at is not None and name not in {"echo", "pkill", "grep", "ps"}:
            arguments = [*words[at + 1 :], *_of_torchrun(words[:at])]
            self.script.launches.append(Launch(words[at].text, words[at].line, arguments))
        elif name in self._functions:
            with suppress(_ReturnError):
                self.run(self._functions.pop(name))
        elif name in {"exit", "exec", "return"}:
            raise _ReturnError if name == "return" else _EndError

    def _run_list(self, node: Node) -> None:
        left, right = node.named_children
        self.run(left)
        is_good = self._words.is_true(left)
        if is_good is None and left.type in {"test_command", "compound_statement"}:
            self._not_decided(left, [right])
        elif is_good is None:
            # A command, which is taken to succeed.
            if source_of(node.children[1]) == "&&":
                self.run(right)
        elif is_good == (source_of(node.children[1]) == "&&"):
            self.run(right)

    def _run_subshell(self, node: Node) -> None:
        before = self._words.variables
        self._words.variables = dict(before)
        with suppress(_EndError):
            self._all(node.named_children)
        self._words.variables = before

    def _run_if_statement(self, node: Node) -> None:
        for condition, body in _branches(node):
            holds = True if condition is None else self._words.is_true(condition)
            if holds is None:
                self._not_decided(node, [node], condition)
            elif holds:
                self._all(body)
            if holds is not False:
                return

    def _run_case_statement(self, node: Node) -> None:
        subject, *items = node.named_children
        text = self._words.text(subject)
        for item in items:
            values = item.children_by_field_name("value")
            found = [self._words.matches(text, value) for value in values]
            if None in found and source_of(values[0]) != "*":
                self._not_decided(node, [node], subject)
                return
            if True in found or source_of(values[0]) == "*":
                self._all([part for part in item.named_children if part not in values])
                return

    def _run_for_statement(self, node: Node) -> None:
        """Read a loop once, with the variables that it assigns unknown."""
        self._forget(node, node)
        self._all(node.named_children[-1].named_children)

    _run_while_statement = _run_for_statement
    _run_c_style_for_statement = _run_for_statement

    def _not_decided(self, node: Node, within: list[Node], why: Node | None = None) -> None:
        for part in within:
            self._forget(part, why or node)
            if any(MAIN.fullmatch(source_of(word)) for word in _below(part, "word")):
                self.script.undecided.append((line_of(node), source_of(why or node)))

    def _forget(self, node: Node, why: Node) -> None:
        """Mark all variables that a statement may assign as unknown."""
        unknown = unread.mark(line_of(why), re.split(r"\n|; *do\b", source_of(why))[0])
        variables = self._words.variables
        if node.type == "for_statement":
            # The environment chooses one pass of a loop.
            name = source_of(node.named_children[0])
            variables[name] = self._given.get(name, unknown)
        for assignment in _below(node, "variable_assignment"):
            name = re.sub(r"\[.*", "", source_of(assignment.named_children[0]))
            before = variables.get(name)
            is_list = isinstance(before, list) or assignment.named_children[-1].type == "array"
            known = before if isinstance(before, list) else []
            variables[name] = [*known, unknown] if is_list else unknown


def _branches(node: Node) -> Iterator[tuple[Node | None, list[Node]]]:
    """Yield the condition and the body of if, elif and else, which has no condition."""
    inner = [part for part in node.named_children if part.type != "comment"]
    clauses = [part for part in inner if part.type in {"elif_clause", "else_clause"}]
    condition, *body = (part for part in inner if part not in clauses)
    yield condition, body
    for clause in clauses:
        body = [part for part in clause.named_children if part.type != "comment"]
        yield (None, body) if clause.type == "else_clause" else (body[0], body[1:])


def _below(node: Node, kind: str) -> Iterator[Node]:
    if node.type == kind:
        yield node
    for part in node.named_children:
        yield from _below(part, kind)
