"""Words of a shell script to text, by its variables; nothing is run.

What only a run could say (`$(date)`, a variable that is not set) becomes a mark in the text. The
folder where the trainer is called is `.`, so a job that is run there finds the same files.
"""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase, translate
from operator import eq, ge, gt, le, lt, ne
from pathlib import PurePosixPath
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from ppojob_cli.verl import unread
from ppojob_cli.verl.arithmetic import evaluate

Variable = str | list[str]
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": eq,
    "-ne": ne,
    "-lt": lt,
    "-le": le,
    "-gt": gt,
    "-ge": ge,
}
_GROUPS: Final = (
    *("redirected_statement", "subshell"),
    *("command_substitution", "compound_statement"),
)
_IN_DEFAULT: Final = re.compile(r"(?<=[-=])\$\(\(((?:[^()\n]|\([^()\n]*\))*)\)\)(?=[^\n]*\})")
_WITHIN: Final = re.compile(
    r"""('[^'\n]*'|"(?:[^"\\\n]|\\.)*")|(?<=[\w./:,+@%}"')[\]-])\$([A-Za-z_]\w*)|`([^`\\\n]*)`"""
)
_NAME: Final = re.compile(r"^!?(\w+|[@*#?$!-])(\[[^\]]*\])?")
_HIDDEN: Final = re.compile("\ue004([0-9a-f]*)\ue005")
_OTHER_HARDWARE: Final = "torch_npu"
"""Scripts ask whether this can be imported to know an Ascend NPU; here there are none."""


def parsed(text: str) -> Node:
    """Parse a script to a tree.

    Arithmetic within `${x:-...}`, which the grammar takes for a command, is hidden in words. Of
    `$x/y-$z/w` it makes two words, also of `` x`pwd` ``; of `${z}` and `$(pwd)` one.
    """
    hidden = _IN_DEFAULT.sub(lambda found: f"\ue004{found[1].encode().hex()}\ue005", text)
    hidden = _WITHIN.sub(
        lambda found: found[1] or (f"${{{found[2]}}}" if found[2] else f"$({found[3]})"), hidden
    )
    root: Node = Parser(Language(tree_sitter_bash.language())).parse(hidden.encode()).root_node
    return root


def line_of(node: Node) -> int:
    """Return the first line of a node, from 1."""
    return int(node.start_point[0]) + 1


def source_of(node: Node) -> str:
    """Return the source text of a node."""
    text = (node.text or b"").decode("utf-8", "replace")
    return _HIDDEN.sub(lambda found: f"$(({bytes.fromhex(found[1]).decode()}))", text)


class Words:
    """Words by the variables at one place of a script, whose statements change them."""

    def __init__(self, variables: dict[str, Variable]) -> None:
        self.variables = variables

    def text(self, node: Node) -> str:
        """Expand a word of an assignment, without splitting."""
        return " ".join(self.fields(node, split=False))

    def fields(self, node: Node, *, split: bool = True) -> list[str]:
        """Expand a word to arguments."""
        if node.type in {"command_name", "comment"}:  # a comment has no parts
            parts = node.named_children
            return [word for part in parts for word in self.fields(part, split=split)]
        if node.type == "string":
            return self._quoted(node)
        if node.type == "concatenation":
            found = [""]
            for part in node.children:
                first, *rest = self.fields(part, split=split) or [""]
                found[-1] += first
                found += rest
            return found
        if node.type in {"raw_string", "ansi_c_string"}:
            return [source_of(node).lstrip("$")[1:-1]]
        if node.type in {"simple_expansion", "expansion", "command_substitution"}:
            found = self._expanded(node)
            return [word for one in found for word in one.split()] if split else found
        if node.type == "arithmetic_expansion":
            value = self._number(node)
            return [self._unread(node) if value is None else str(value)]
        if _HIDDEN.search((node.text or b"").decode("utf-8", "replace")):
            (assignment,) = parsed(f"x={source_of(node)}").named_children[:1]
            return self.fields(assignment.named_children[-1], split=split)
        text = re.sub(r"\\(.)", r"\1", source_of(node).replace("\\\n", ""))
        if re.match(r"~(/|$)", text):
            text = f"{self._value('HOME', node)[0]}{text[1:]}"
        return [text]

    def is_true(self, node: Node) -> bool | None:
        """Evaluate a condition; None if it is unknown without a run; `cd` changes nothing."""
        folder = self.variables["PWD"]
        is_good, _ = self._answer(node)
        self.variables["PWD"] = folder
        return is_good

    def matches(self, text: str, pattern: Node) -> bool | None:
        """Return whether a text matches a pattern, as for `case` and `==`."""
        wanted = self.text(pattern)
        if any(unread.marks([text, wanted])):
            return None
        return fnmatchcase(text, wanted)

    def _quoted(self, node: Node) -> list[str]:
        found, end = [""], node.start_byte + 1
        whole = node.text or b""
        for part in node.named_children:
            gap = whole[end - node.start_byte : part.start_byte - node.start_byte]
            found[-1] += _unescaped(gap)
            end = part.end_byte
            if part.type == "string_content":
                found[-1] += _unescaped(part.text or b"")
                continue
            # The grammar counts white space before an expansion to it.
            text = source_of(part)
            found[-1] += text[: len(text) - len(text.lstrip())]
            is_list = "[@]" in text or text.strip() in {"$@", "${@}"}
            values = self.fields(part, split=False)
            if is_list:
                first, *rest = values or [""]
                found[-1] += first
                found += rest
                if not values and len(node.named_children) == 1:
                    return []
            else:
                found[-1] += " ".join(values)
        found[-1] += _unescaped(whole[end - node.start_byte : -1])
        return found

    def _expanded(self, node: Node) -> list[str]:
        if node.type == "command_substitution":
            # What it assigns, `cd` among it, it does in a shell of its own.
            before, self.variables = self.variables, dict(self.variables)
            is_good, text = self._answer(node)
            self.variables = before
            return [self._unread(node) if is_good is None else text]
        inner = node.named_children
        if not inner:
            return [self._unread(node)]
        name, rest = source_of(inner[0]), source_of(node).strip().lstrip("$").removeprefix("{")
        if rest.startswith("#"):
            values = self._value(source_of(inner[0]), node)
            return [str(len(values) if "[" in name else len(values[0]))]
        operator = _NAME.sub("", rest.removesuffix("}"), count=1)
        return self._operated(node, name, operator, inner[1:])

    def _operated(self, node: Node, name: str, operator: str, rest: list[Node]) -> list[str]:
        stem = re.sub(r"\[[^\]]*\]$", "", name)
        is_set = stem in self.variables
        if operator.startswith(":"):
            is_set = is_set and bool(self.variables[stem])
        found = re.match(r":?([-=+?])", operator)
        if found is not None:
            other = ["".join(self.text(part) for part in rest)]
            if rest and rest[0].type == "string":
                other = self.fields(rest[0], split=False)
            if found[1] == "+" and any(unread.marks(self.variables.get(stem))):
                return [self._unread(node)]
            if found[1] == "+":
                return other if is_set else [""]
            if found[1] == "?" or is_set:
                return self._value(name, node)
            if found[1] == "=":
                self.variables[stem] = other[0] if other else ""
            return other
        values = self._value(name, node)
        if not operator or any(unread.marks(values)):
            return values
        arguments = [source_of(part) if part.type == "regex" else self.text(part) for part in rest]
        done = [_edited(value, operator, arguments) for value in values]
        return [self._unread(node) if one is None else one for one in done]

    def _value(self, name: str, node: Node) -> list[str]:
        stem, _, index = name.rstrip("]").partition("[")
        if stem in {"@", "*"}:
            return []
        if stem not in self.variables:
            return [self._unread(node)]
        value = self.variables[stem]
        if isinstance(value, str):
            return [value]
        if index in {"@", "*"}:
            return list(value)
        position = int(index) if re.fullmatch(r"-?\d+", index) else 0 if not index else None
        if position is None or not -len(value) <= position < len(value):
            return [self._unread(node) if index else ""]
        return [value[position]]

    def _unread(self, node: Node) -> str:
        return unread.mark(line_of(node), source_of(node))

    def _answer(self, node: Node) -> tuple[bool | None, str]:
        """Return whether a command succeeds, and its output; None if unknown without a run."""
        kind = node.type
        if kind == "command":
            return self._of_command(node)
        if kind in {"compound_statement", "test_command"} and source_of(node).startswith("(("):
            number = self._number(node)
            return (None if number is None else bool(number)), ""
        if kind in _GROUPS:
            inner = node.named_children
            only = inner[:1] if kind == "redirected_statement" else inner
            is_good, text = self._answer(only[0]) if len(only) == 1 else (None, "")
            return is_good, "" if kind == "redirected_statement" and _is_redirected(node) else text
        if kind == "negated_command":
            is_good, text = self._answer(node.named_children[0])
            return (None if is_good is None else not is_good), text
        if kind == "list":
            left, right = node.named_children
            is_good, text = self._answer(left)
            if is_good is None or is_good == (source_of(node.children[1]) == "||"):
                return is_good, text
            is_good, more = self._answer(right)
            return is_good, "\n".join(filter(None, (text, more)))
        if kind == "test_command":
            inner = node.named_children
            return (self._holds(inner[0]) if len(inner) == 1 else None), ""
        return None, ""

    def _of_command(self, node: Node) -> tuple[bool | None, str]:
        if _OTHER_HARDWARE in source_of(node):
            return False, ""
        words = [word for part in node.named_children for word in self.fields(part)]
        match [word for word in words if word != "--"]:
            case ["true" | ":"]:
                return True, ""
            case ["false"]:
                return False, ""
            case ["echo", *rest]:
                return True, " ".join(rest)
            case ["basename", path, *ending] if len(ending) <= 1:
                name = PurePosixPath(path).name
                return True, name.removesuffix(ending[0]) if ending else name
            case ["dirname", path]:
                return True, str(PurePosixPath(path).parent)
            case ["pwd", *_]:
                return True, str(self.variables["PWD"])
            case ["cd", folder]:
                self.variables["PWD"] = str(PurePosixPath(str(self.variables["PWD"]), folder))
                return True, ""
        return None, ""

    def _holds(self, node: Node) -> bool | None:
        """Evaluate the condition in `[ ]` or `[[ ]]`."""
        if node.type == "parenthesized_expression":
            return self._holds(node.named_children[0])
        if node.type == "unary_expression":
            operator, operand = source_of(node.children[0]), node.named_children[-1]
            if operator == "!":
                holds = self._holds(operand)
                return None if holds is None else not holds
            text = self.text(operand)
            is_known = operator in {"-n", "-z"} and not any(unread.marks(text))
            return (bool(text) == (operator == "-n")) if is_known else None
        if node.type != "binary_expression":
            text = self.text(node)
            return None if any(unread.marks(text)) else bool(text)
        left, right = node.named_children[0], node.named_children[-1]
        operator = source_of(node.children[1])
        if operator in {"&&", "||"}:
            first = self._holds(left)
            return self._holds(right) if first == (operator == "&&") else first
        if operator in {"=", "==", "!="}:
            equal = self.matches(self.text(left), right)
            return None if equal is None else equal == (operator != "!=")
        if operator in _COMPARE:
            one, two = self._integer(self.text(left)), self._integer(self.text(right))
            return None if one is None or two is None else _COMPARE[operator](one, two)
        return None

    def _number(self, node: Node) -> int | None:
        """Evaluate `$(( ))` or `(( ))`; None if unknown."""
        text = self._substituted(node).removeprefix("$").removeprefix("((").removesuffix("))")
        return evaluate(text, self._of_variable)

    def _substituted(self, node: Node) -> str:
        """Return the source of arithmetic with its expansions done."""
        if node.type in {"simple_expansion", "expansion", "command_substitution", "string"}:
            return self.text(node)
        if not node.children:
            return source_of(node)
        whole, end, found = node.text or b"", node.start_byte, ""
        for part in node.children:
            found += whole[end - node.start_byte : part.start_byte - node.start_byte].decode()
            is_inner = part.type == "arithmetic_expansion"
            found += self.text(part) if is_inner else self._substituted(part)
            end = part.end_byte
        return found + whole[end - node.start_byte :].decode()

    def _of_variable(self, name: str) -> str | None:
        value = self.variables.get(name)
        return value if isinstance(value, str) and not any(unread.marks(value)) else None

    def _integer(self, text: str) -> int | None:
        return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else None


def _is_redirected(node: Node) -> bool:
    """Return whether a statement's output goes elsewhere: `> file`, `>&2`, not `2> file`."""
    for one in node.named_children:
        operator = source_of(one).lstrip("0123456789")
        descriptor = source_of(one).removesuffix(operator)
        is_output = descriptor in {"", "1"} and operator.startswith((">", "&>"))
        if one.type == "file_redirect" and is_output:
            return True
    return False


def _unescaped(text: bytes) -> str:
    plain = text.decode("utf-8", "replace")
    return re.sub(r"\\([$`\"\\\n])", lambda one: one[1].strip("\n"), plain)


def _edited(value: str, operator: str, arguments: list[str]) -> str | None:
    """Evaluate `${x,,}`, `${x##*/}`, `${x%.sh}` or `${x/a/b}`; None if unsupported."""
    pattern, other = (*arguments, "", "")[:2]
    ends, places = operator[:2], range(len(value) + 1)
    if operator in {",,", "^^"}:
        return value.lower() if operator == ",," else value.upper()
    if ends.startswith("#"):
        cuts = [value[end:] for end in places if fnmatchcase(value[:end], pattern)]
        return (cuts or [value])[-1 if ends == "##" else 0]
    if ends.startswith("%"):
        cuts = [value[:start] for start in places if fnmatchcase(value[start:], pattern)]
        return (cuts or [value])[0 if ends == "%%" else -1]
    if ends.startswith("/"):
        form = translate(pattern).removesuffix(r"\Z")
        return re.sub(form, lambda _: other, value, count=0 if ends == "//" else 1)
    return None
