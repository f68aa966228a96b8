"""The child that runs reward functions.

It trusts nothing of them: every call gets objects of its own, whatever it raises is an answer, and
what they print cannot reach the pipes. Loops, bombs and deaths are the parent's and the guardian's
to end (``ppojob_trainer.rewards.process``, ``ppojob_trainer.children.guardian``).
"""

import asyncio
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.custom import (
    SINGULAR,
    columns_of,
    load_function,
    takes_batch,
)
from ppojob_trainer.rewards.results import BadResult, read_result, read_results
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.rewards.wire import (
    Called,
    CallFunction,
    Loaded,
    LoadFunctions,
    Scored,
    ScorerRequest,
)
from ppojob_trainer.sandbox.executor import Runner, SandboxRefused
from ppojob_trainer.sandbox.settings import open_sandbox

# Taken before a function is loaded, which may put something else in their place.
_decode: Final = msgspec.msgpack.Decoder(ScorerRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Function:
    """A loaded function.

    Attributes:
        arguments: JSON object.
        folder: where its file lies; empty for a built-in scorer.
        columns: names of what it is told of the row, and of the response besides the text.
    """

    call: Callable[..., object]
    arguments: bytes
    folder: str
    columns: frozenset[str]
    is_batched: bool = False


class Functions:
    """The loaded functions, called by position."""

    def __init__(self) -> None:
        self._functions: list[_Function] = []
        self._sandbox: Callable[[], Runner]
        self._is_routed = False
        self._neighbours = Neighbours()
        # One loop for all calls: what a coroutine leaves open (a connection, say) lives on in it.
        self._loop = asyncio.Runner()

    def load(self, request: LoadFunctions) -> Loaded:
        """Load all; say what is wrong with each that cannot be used."""
        self._sandbox = partial(open_sandbox, request.sandbox)  # when the first call needs it
        self._is_routed = request.is_routed
        problems: list[str] = []
        specs = [RewardSpec.model_validate_json(one) for one in request.rewards]
        for position, spec in enumerate(specs):
            try:
                self._functions.append(self._load(position, spec))
                if not request.is_routed:
                    self._check_sandbox(spec)
            except ConfigError as wrong:
                problems += [f"spec.rewards[{position}].{one}" for one in wrong.problems]
        batched = [n for n, function in enumerate(self._functions) if function.is_batched]
        return Loaded(problems, [] if problems else batched)

    def call(self, request: CallFunction) -> Called:
        """Call a function with objects decoded for this call alone."""
        function = self._functions[request.function]
        try:
            value = self._value(function, request)
            count = len(request.responses)
            found = read_results(value, count) if function.is_batched else [value]
        except BaseException as error:  # SystemExit and its kin are answers too
            return Called(request.number, failure=_failed(error))
        return Called(request.number, [_scored(one) for one in found])

    def _value(self, function: _Function, request: CallFunction) -> object:
        """What a function says; one that is not batched has each column's only entry."""
        given: dict[str, Any] = {
            "data_sources": request.data_sources,
            "solution_strs": request.responses,
            "ground_truths": msgspec.json.decode(request.ground_truths),
            "extra_infos": msgspec.json.decode(request.extra_infos),
            "response_tokens": request.response_tokens,
            "finish_reasons": request.finish_reasons,
        }
        if not function.is_batched:
            given = {SINGULAR[name]: column[0] for name, column in given.items()}
        told = {name: given[name] for name in function.columns}
        self._neighbours.enter(function.folder)
        value = function.call(**(told | msgspec.json.decode(function.arguments)))
        return self._loop.run(value) if inspect.iscoroutine(value) else value

    def _load(self, position: int, spec: RewardSpec) -> _Function:
        name, given, folder = spec.function, spec.arguments, ""
        if spec.source is None:
            function = load_scorer(name, given, self._sandbox, late=self._is_routed)
        else:
            if spec.source.file is not None:
                folder = str(Path(spec.source.file).resolve().parent)
            self._neighbours.enter(folder)
            function = load_function(spec.source, name, given, position)
        arguments, columns = msgspec.json.encode(given), columns_of(function)
        return _Function(function, arguments, folder, columns, takes_batch(function))

    def _check_sandbox(self, spec: RewardSpec) -> None:
        """A scorer that is asked for by name, and runs code, needs a sandbox from the start."""
        if spec.source is not None or not SCORERS[spec.function].runs_code:
            return
        try:
            self._sandbox()
        except SandboxRefused as refused:
            got = f"{spec.function} with {refused.got}"
            raise ConfigError(f"function: got {got}: {refused.why}; {refused.allowed}") from None


def _scored(value: object) -> Scored:
    try:
        return Scored(*read_result(value))
    except BaseException as error:  # a user's object may raise anything when it is read
        return _failed(error)


def _failed(error: BaseException) -> Scored:
    if isinstance(error, BadResult):
        return Scored(reason_code=error.reason_code, got=error.got, why=error.why)
    reason = "RewardMemory" if isinstance(error, MemoryError) else "RewardRaised"
    got, why = raised(error, __file__)
    return Scored(reason_code=reason, got=got, why=why)


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    functions = Functions()

    def answer(body: bytes) -> bytes:
        request = _decode(body)
        is_call = isinstance(request, CallFunction)
        return _encode(functions.call(request) if is_call else functions.load(request))

    answer_requests(requests, answers, answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
