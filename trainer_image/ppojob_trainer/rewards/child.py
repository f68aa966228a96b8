"""Child process that runs reward functions.

It does not trust them: every call gets its own objects, exceptions become answers, and output
cannot reach the pipes. The parent and the guardian end loops, fork bombs and dead processes
(``ppojob_trainer.rewards.process``, ``ppojob_trainer.children.guardian``).
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ppojob_api import contract
from ppojob_trainer.children import guardian
from ppojob_trainer.children.user_code import ImportFolder, raised, run_coroutine
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rewards import custom, wire
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.results import BadResult, read_result, read_results
from ppojob_trainer.sandbox.executor import Runner, open_sandbox

# Bound before users' code is imported, which may replace them.
_decode: Final = msgspec.msgpack.Decoder(wire.ScorerRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Function:
    """A loaded function."""

    call: Callable[..., object]
    arguments: bytes
    folder: str  # folder of its file; empty for a built-in scorer
    columns: frozenset[str]

    @property
    def takes_many(self) -> bool:
        return custom.BATCHED in self.columns

    @property
    def is_grouped(self) -> bool:
        return self.takes_many and "ground_truth" in self.columns


class Functions:
    """The loaded functions, called by position."""

    def __init__(self) -> None:
        self._functions: list[_Function] = []
        self._imports = ImportFolder()
        self._of_judge: dict[str, Any] = {}

    def answer(self, body: bytes) -> bytes:
        """Answer a request."""
        request = _decode(body)
        is_call = isinstance(request, wire.CallFunction)
        return _encode(self.call(request) if is_call else self.load(request))

    def load(self, request: wire.LoadFunctions) -> wire.FunctionsLoaded:
        """Load all functions; return the problems of those that cannot be used."""
        sandbox = partial(open_sandbox, request.sandbox)
        problems: list[str] = []
        if request.judge is not None:
            os.environ[contract.ENV_JUDGE_URL] = request.judge.url
            os.environ[contract.ENV_JUDGE_MODEL] = request.judge.model
            for name in ("no_proxy", "NO_PROXY"):  # the judge's router is local
                host = urlsplit(request.judge.url).hostname
                os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
        for position, spec in enumerate(request.rewards):
            try:
                self._functions.append(self._load(position, spec, sandbox, request.is_routed))
            except ConfigError as wrong:
                problems += [f"spec.rewards[{position}].{line}" for line in wrong.problems]
        wanted = frozenset[str]().union(*(function.columns for function in self._functions))
        if request.judge is not None and (wanted := wanted & {*custom.OF_THE_JUDGE}):
            self._of_judge = _of_judge(request.judge, wanted)
        many = {n: one.is_grouped for n, one in enumerate(self._functions) if one.takes_many}
        batched = [n for n, is_grouped in many.items() if not is_grouped]
        return wire.FunctionsLoaded(problems, batched, [n for n in many if many[n]])

    def call(self, request: wire.CallFunction) -> wire.Called:
        """Call a function with objects decoded for this call only."""
        function = self._functions[request.function]
        try:
            given: dict[str, Any] = msgspec.json.decode(request.columns)
            count = len(given[custom.BATCHED])
            if not function.takes_many:
                given = {custom.SINGULAR[name]: column[0] for name, column in given.items()}
            else:
                given |= {name: given[plural][0] for name, plural in custom.OF_THE_PROMPT.items()}
            given |= self._of_judge
            columns = {name: given[name] for name in function.columns}
            self._imports.enter(function.folder)
            value = function.call(**(columns | msgspec.json.decode(function.arguments)))
            if inspect.iscoroutine(value):
                value = run_coroutine(value)
            found = read_results(value, count) if function.takes_many else [value]
        except BaseException as error:  # also SystemExit
            return wire.Called(request.number, failure=_failed(error))
        return wire.Called(request.number, [_scored(one) for one in found])

    def _load(
        self, position: int, spec: wire.Function, sandbox: Callable[[], Runner], is_routed: bool
    ) -> _Function:
        name, given, folder = spec.function, spec.arguments, ""
        if spec.source is None:
            function = load_scorer(name, given, sandbox, late=is_routed)
        else:
            if spec.source.file is not None:
                folder = str(Path(spec.source.file).resolve().parent)
            self._imports.enter(folder)
            function = custom.load_function(spec.source, name, given, position)
        return _Function(function, msgspec.json.encode(given), folder, custom.columns_of(function))


def _of_judge(judge: wire.Judge, wanted: frozenset[str]) -> dict[str, Any]:
    """Return the arguments by which verl's functions call the job's own judge."""
    found: dict[str, Any] = {}
    address, tokenizer = custom.OF_THE_JUDGE
    if address in wanted:
        found[address] = urlsplit(judge.url).netloc
    if tokenizer in wanted:
        from transformers import AutoTokenizer  # late: it takes seconds, and few functions need it

        found[tokenizer] = AutoTokenizer.from_pretrained(judge.model)
    return found


def _scored(value: object) -> wire.Scored:
    try:
        return wire.Scored(*read_result(value))
    except BaseException as error:  # a user's object may raise when it is read
        return _failed(error)


def _failed(error: BaseException) -> wire.Scored:
    if isinstance(error, BadResult):
        return wire.Scored(reason_code=error.reason_code, got=error.got, why=error.why)
    reason = "RewardMemory" if isinstance(error, MemoryError) else "RewardRaised"
    got, why = raised(error, __file__)
    return wire.Scored(reason_code=reason, got=got, why=why)


if __name__ == "__main__":
    guardian.main(lambda: Functions().answer)
