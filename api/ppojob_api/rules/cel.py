"""Evaluator of the part of CEL (https://cel.dev) that the rules use, with the API server's results.

Supported: numbers, text, lists, `{}`, paths, `has`, comparison, logic, integer arithmetic,
`a ? b : c`, and the methods below. `dyn` does nothing, since values have no static types here. An
absent field is an error, unless `has` guards it or it is read as `a.?b`.
"""

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

Scope = Mapping[str, Any]
Node = Callable[[Scope], Any]
"""A part of an expression: its value for given variables."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?)"
    r"|r?'(?P<text>[^']*)'"
    r"|\[(?P<words>(\s*'[^']*',?)*)\]"
    r"|(?P<empty>\{\})"
    r"|has\((?P<has>[\w.]+)\)"
    r"|\.(?P<macro>all|exists_one|map)\((?P<item>\w+),"
    r"|\.(?P<otherwise>orValue)\("
    r"|\.(?P<method>\w+)\((r?'(?P<argument>[^']*)')?\)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:(),[\]]|in\b)"
    r"|(?P<path>\w+(\.\??\w+\b(?!\())*))\s*"
)


class Expression:
    """A parsed expression.

    Attributes:
        value: Its value for given variables.
        paths: Fields of `self` that it reads, such as `steps.total`.
        bad_items: If the whole expression is `list.all(item, condition)`, the items that violate
            the condition, each with its index, for given variables.

    Raises:
        ValueError: This module cannot parse it.
    """

    def __init__(self, text: str) -> None:
        self.paths: set[str] = set()
        self._text, self._end = re.sub(r"\bdyn\((\w+)\)", r"\1", text).replace("dyn(", "("), 0
        self._bad_items: dict[Node, Node] = {}
        self._token = self._following()
        self.value = self._read()
        self.bad_items = self._bad_items.get(self.value)
        if self._token is not None:
            raise self._unreadable()

    def _unreadable(self) -> ValueError:
        return ValueError(f"{self._text}: cannot be parsed after character {self._end}")

    def _following(self) -> re.Match[str] | None:
        if self._end == len(self._text):
            return None
        found = _TOKEN.match(self._text, self._end)
        if found is None:
            raise self._unreadable()
        self._end = found.end()
        return found

    def _take(self, signs: str) -> str | None:
        """Consume the next token if it is one of these signs."""
        sign = self._token["sign"] if self._token else None
        if sign is None or sign not in signs.split():
            return None
        self._token = self._following()
        return sign

    def _expect(self, sign: str) -> None:
        if self._take(sign) is None:
            raise self._unreadable()

    def _read(self, rank: int = 0) -> Node:
        """Parse operators that bind more tightly than `rank`, with their operands."""
        left = self._operand()
        for own in range(len(_OPERATORS) - 1, rank - 1, -1):
            while sign := self._take(" ".join(_OPERATORS[own])):
                left = _OPERATORS[own][sign](left, self._read(own + 1))
        return self._choice(left) if rank == 0 and self._take("?") else left

    def _choice(self, condition: Node) -> Node:
        yes = self._read()
        self._expect(":")
        no = self._read()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def _operand(self) -> Node:
        if self._take("!"):
            negated = self._operand()
            return lambda scope: not negated(scope)
        if self._take("("):
            node = self._read()
            self._expect(")")
        elif self._take("["):
            node = self._list()
        elif self._token is None:
            raise self._unreadable()
        else:
            node = self._plain(self._token)
            self._token = self._following()
        while self._token and (
            self._token["macro"] or self._token["method"] or self._token["otherwise"]
        ):
            node = self._called(node, self._token)
        return node

    def _list(self) -> Node:
        items = [self._read()]
        while self._take(","):
            items.append(self._read())
        self._expect("]")
        return lambda scope: [item(scope) for item in items]

    def _plain(self, token: re.Match[str]) -> Node:
        if (number := token["number"]) is not None:
            return _constant(int(number) if number.lstrip("-").isdigit() else float(number))
        if token["text"] is not None:
            return _constant(token["text"])
        if token["words"] is not None:
            return _constant(re.findall("'([^']*)'", token["words"]))
        if token["empty"] is not None:
            return _constant({})
        if token["path"] in {"true", "false"}:
            return _constant(token["path"] == "true")
        path = token["has"] or token["path"]
        if path is None:
            raise self._unreadable()
        # A field whose name is reserved in CEL, such as `in`, is written as `__in__`.
        variable, *keys = re.sub(r"__(\w+?)__", r"\1", path).split(".")
        if variable == "self":
            self.paths.add(".".join(keys).replace("?", ""))
        if token["has"] is None:
            return lambda scope: _member(scope[variable], keys)
        return lambda scope: keys[-1] in _member(scope[variable], keys[:-1])

    def _called(self, target: Node, token: re.Match[str]) -> Node:
        self._token = self._following()
        if token["method"] is not None:
            method, argument = _METHODS[token["method"]], token["argument"]
            return lambda scope: method(target(scope), *([argument] if argument else []))
        if token["otherwise"]:
            default = self._read()
            self._expect(")")
            return lambda scope: default(scope) if target(scope) is None else target(scope)
        item, condition = token["item"], self._read()
        self._expect(")")
        if token["macro"] == "map":
            return lambda scope: [condition({**scope, item: one}) for one in target(scope)]

        def bad(scope: Scope) -> list[tuple[int, Any]]:
            items = enumerate(target(scope))
            return [(index, one) for index, one in items if not condition({**scope, item: one})]

        if token["macro"] == "exists_one":
            return lambda scope: len(target(scope)) - len(bad(scope)) == 1

        def every(scope: Scope) -> bool:
            return not bad(scope)

        self._bad_items[every] = bad
        return every


read = cache(Expression)


def _constant(value: object) -> Node:
    return lambda _: value


def _member(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value.get(key[1:]) if key.startswith("?") else value[key]
    return value


def _strict(act: Callable[[Any, Any], Any]) -> Callable[[Node, Node], Node]:
    return lambda left, right: lambda scope: act(left(scope), right(scope))


_OPERATORS: Final[tuple[dict[str, Callable[[Node, Node], Node]], ...]] = (
    {"||": lambda left, right: lambda scope: left(scope) or right(scope)},
    {"&&": lambda left, right: lambda scope: left(scope) and right(scope)},
    {
        "==": _strict(operator.eq),
        "!=": _strict(operator.ne),
        "<": _strict(operator.lt),
        "<=": _strict(operator.le),
        ">": _strict(operator.gt),
        ">=": _strict(operator.ge),
        "in": _strict(lambda item, items: item in items),
    },
    {"+": _strict(operator.add), "-": _strict(operator.sub)},
    {
        "*": _strict(operator.mul),
        "/": _strict(operator.floordiv),
        "%": _strict(operator.mod),
    },
)
"""Operators by precedence, the lowest first."""

_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "size": len,
    "contains": operator.contains,
    "startsWith": str.startswith,
    # In CEL `$` matches only at the end of the text, not before a final newline.
    "matches": lambda text, pattern: bool(re.search(re.sub(r"\$$", r"\\Z", pattern), text)),
}
