"""Environments: objects of which each row has its own, and whose methods are tools.

They are of users' classes, or sessions with MCP servers. The state of an environment is a function
of its constructor arguments and of the calls so far. So one that is lost with its process is made
again: another process repeats the calls.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.errors import ConfigError, StateLost
from ppojob_trainer.rewards.results import read_number
from ppojob_trainer.tools.wire import CallTool, EndRow, EnvironmentCall, ToolCode

# Bound before users' code is imported, which may replace it.
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

_SCORE: Final = "score"
AT_THE_END: Final = (_SCORE, "close")
"""Methods that are called when the row has ended, if there are any; they are no tools."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of environment.

    Attributes:
        name: of its constructor arguments in a row: that of a class, an MCP server or a tool.
        create: takes them; with `takes_row` also `row`, the name of the row.
        scores: whether it has a score for a row that has ended.
    """

    name: str
    create: Callable[..., object]
    scores: bool = False
    takes_row: bool = False


@dataclass(frozen=True, slots=True)
class Method:
    """A tool of an environment.

    `call` takes the environment, and the arguments of the call by name.
    """

    kind: Kind
    call: Callable[..., object]


def load_method(found: object, path: str, name: str, tool: ToolCode) -> Method:
    """Check the method `CLASS.METHOD` of what a file has by the name of the class.

    Raises `ConfigError`, with a place relative to the tool.
    """
    if not isinstance(found, type):
        why, allowed = f"{path} has no such class", "a class whose methods are tools"
        raise ConfigError(f"source.function: got {name}: {why}; {allowed}")
    environment, _, wanted = name.partition(".")
    if wanted in AT_THE_END:
        why = "it is called when the row has ended, and is no tool"
        raise ConfigError(f"source.function: got {name}: {why}; another method")
    method = getattr(found, wanted, None)
    if not inspect.isfunction(method):
        raise ConfigError(
            f"source.function: got {name}: the class has no such method; a method of it"
        )
    given = tool.parameters.get("properties") or {}
    check_arguments(name, inspect.signature(method), given, "method", None)
    if tool.config:
        why = "an environment takes the create_kwargs of a row"
        raise ConfigError(f"config: got {shown(tool.config)}: {why}; remove it")
    scores = inspect.isfunction(getattr(found, _SCORE, None))
    return Method(Kind(environment, found, scores), method)


def check_arguments(
    name: str, signature: inspect.Signature, given: Iterable[str], what: str, *own: None
) -> None:
    """Check that a function or method (`what`) takes what is `given` by name, after its `own`."""
    try:
        signature.bind(*own, **dict.fromkeys(given))
    except TypeError as error:
        raise ConfigError(
            f"parameters: got {name}{signature}: it cannot be called with the properties of "
            f"parameters: {error}; the arguments of the {what}"
        ) from None


@dataclass(slots=True)
class _Row:
    """The environments of a row by their kind.

    Attributes:
        created: JSON object with the constructor arguments of each.
        calls: all calls so far.
    """

    name: str
    created: bytes
    objects: dict[Kind, object] = field(default_factory=dict)
    calls: list[EnvironmentCall] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        """Whether one of them says that its state is gone, with a server, say."""
        return any(getattr(one, "is_lost", False) for one in self.objects.values())


class Environments:
    """The environments of rows that this process has.

    Args:
        methods: the tools of environments, by position.
        run: returns the value of a call, or of what it awaits.
    """

    def __init__(self, methods: Mapping[int, Method], run: Callable[[object], object]) -> None:
        self._methods = methods
        self._run = run
        self._rows: dict[str, _Row] = {}

    def call(self, request: CallTool) -> object:
        """Call the environment of a row; it is made, or made again, if it is not here."""
        return self._call(self._row(request), EnvironmentCall(request.tool, request.arguments))

    def end(self, request: EndRow) -> float:
        """Close the environments of a row; return the sum of their scores.

        One that has a score is made if it is not here, also if it was never called.
        """
        kinds = dict.fromkeys(method.kind for method in self._methods.values())
        scored = [kind for kind in kinds if kind.scores]
        try:
            if not scored:
                return 0.0
            row = self._row(request)
            objects: list[Any] = [self._object(row, kind) for kind in scored]
            scores = [self._run(environment.score()) for environment in objects]
            return sum(read_number(score, "a score is a number") for score in scores)
        finally:
            self.close(request.row)

    def _row(self, request: CallTool | EndRow) -> _Row:
        """Return a row in the state after its earlier calls."""
        row = self._rows.get(request.row)
        if row is None or row.calls != request.before or row.is_lost:
            self.close(request.row)
            row = self._rows[request.row] = _Row(request.row, request.created)
            for earlier in request.before:
                try:
                    self._call(row, earlier)
                except StateLost:
                    raise
                except BaseException:  # reported when it was first called
                    continue
        return row

    def close(self, name: str) -> None:
        """Close the environments of a row without their scores. Idempotent."""
        row = self._rows.pop(name, None)
        for environment in row.objects.values() if row else ():
            close = getattr(environment, "close", None)
            if close is not None:
                try:
                    self._run(close())
                except Exception as error:  # the row has its score, and others go on
                    what = type(environment).__name__
                    sys.stdout.write(
                        f"{name}: {what} was not closed: {raised(error, __file__)[0]}\n"
                    )

    def _call(self, row: _Row, call: EnvironmentCall) -> object:
        method = self._methods[call.tool]
        row.calls.append(call)
        return self._run(method.call(self._object(row, method.kind), **_decode(call.arguments)))

    def _object(self, row: _Row, kind: Kind) -> object:
        """Return the environment of a kind, which is created before its first use."""
        if kind not in row.objects:
            created = _decode(row.created).get(kind.name, {})
            named = {"row": row.name} if kind.takes_row else {}
            row.objects[kind] = kind.create(**named, **created)
        return row.objects[kind]
