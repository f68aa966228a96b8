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

from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.custom import (
    BadFunction,
    load_from_package,
    load_function,
    of_the_response,
    takes_batch,
)
from ppojob_trainer.rewards.results import BadResult, read_result, read_results
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.rewards.wire import (
    CallBatch,
    Called,
    CalledBatch,
    CallFunction,
    FunctionProblem,
    FunctionSpec,
    Loaded,
    LoadFunctions,
    ScorerRequest,
)
from ppojob_trainer.sandbox.executor import Runner, SandboxRefused
from ppojob_trainer.sandbox.settings import SandboxSettings

# Taken before a function is loaded, which may put something else in their place.
_decode: Final = msgspec.msgpack.Decoder(ScorerRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Function:
    """A loaded function.

    Attributes:
        call: takes the row's columns and the arguments by name.
        arguments: JSON object.
        folder: where its file lies; empty for a built-in scorer.
        wanted: what it takes of the response besides the text.
        is_batched: whether it takes all responses at once.
    """

    call: Callable[..., object]
    arguments: bytes
    folder: str
    wanted: frozenset[str] = frozenset()
    is_batched: bool = False


class Functions:
    """The loaded functions, called by position."""

    def __init__(self) -> None:
        self._functions: list[_Function] = []
        self._settings: SandboxSettings
        self._is_routed = False
        self._opened: Runner | None = None
        self._neighbours = Neighbours()
        # One loop for all calls: what a coroutine leaves open (a connection, say) lives on in it.
        self._loop = asyncio.Runner()

    def answer(self, request: ScorerRequest) -> Loaded | Called | CalledBatch:
        """Do what is asked for."""
        match request:
            case LoadFunctions():
                return self.load(request)
            case CallBatch():
                return self.call_batch(request)
            case CallFunction():
                return self.call(request)

    def load(self, request: LoadFunctions) -> Loaded:
        """Load all; say what is wrong with each that cannot be used."""
        self._settings, self._is_routed = request.sandbox, request.is_routed
        problems = []
        for position, spec in enumerate(request.functions):
            try:
                self._functions.append(self._load(position, spec))
                if not request.is_routed:
                    self._check_sandbox(spec)
            except BadFunction as bad:
                problems.append(
                    FunctionProblem(position, bad.reason_code, bad.got, bad.why, bad.allowed)
                )
        batched = [n for n, function in enumerate(self._functions) if function.is_batched]
        return Loaded(problems, [] if problems else batched)

    def call(self, request: CallFunction) -> Called:
        """Call a function with objects decoded for this call alone."""
        function = self._functions[request.function]
        given = {
            "data_source": request.data_source,
            "solution_str": request.response,
            "ground_truth": msgspec.json.decode(request.ground_truth),
            "extra_info": msgspec.json.decode(request.extra_info),
        }
        return self._answered(
            request.number, lambda: read_result(self._value(function, request, given))
        )

    def call_batch(self, request: CallBatch) -> CalledBatch:
        """Call a function once for many responses, and judge what it says of each."""
        function = self._functions[request.function]
        given = {
            "data_sources": request.data_sources,
            "solution_strs": request.responses,
            "ground_truths": msgspec.json.decode(request.ground_truths),
            "extra_infos": msgspec.json.decode(request.extra_infos),
        }
        count, found = len(request.responses), list[object]()

        def called() -> tuple[float, dict[str, float | str]]:
            found.extend(read_results(self._value(function, request, given), count))
            return 0.0, {}

        whole = self._answered(request.number, called)
        if whole.reason_code:
            return CalledBatch(request.number, failure=whole)
        calls = [self._answered(request.number, partial(read_result, one)) for one in found]
        return CalledBatch(request.number, calls)

    def _value(
        self, function: _Function, request: CallFunction | CallBatch, given: dict[str, Any]
    ) -> object:
        """What a function says, with arguments that were decoded for this call alone."""
        told = {name: getattr(request, name) for name in function.wanted}
        told |= msgspec.json.decode(function.arguments)
        self._neighbours.enter(function.folder)
        value = function.call(**given, **told)
        return self._loop.run(value) if inspect.iscoroutine(value) else value

    def _answered(
        self, number: int, call: Callable[[], tuple[float, dict[str, float | str]]]
    ) -> Called:
        """The answer to a call, whatever happens in it."""
        try:
            score, extras = call()
        except BadResult as bad:
            return Called(number, reason_code=bad.reason_code, got=bad.got, why=bad.why)
        except BaseException as error:  # SystemExit and its kin are answers too
            return _raised(number, error)
        return Called(number, score, extras)

    def _load(self, position: int, spec: FunctionSpec) -> _Function:
        arguments = msgspec.json.decode(spec.arguments)
        if spec.is_built_in:
            called = load_scorer(spec.name, arguments, self._sandbox, late=self._is_routed)
            return _Function(called, spec.arguments, "")
        folder = ""
        if spec.path:
            folder = str(Path(spec.path).resolve().parent)
            self._neighbours.enter(folder)
            function = load_function(spec.path, spec.name, arguments, position)
        else:
            function = load_from_package(spec.package, spec.name, arguments)
        wanted, is_batched = of_the_response(function), takes_batch(function)
        return _Function(function, spec.arguments, folder, wanted, is_batched)

    def _check_sandbox(self, spec: FunctionSpec) -> None:
        """A scorer that is asked for by name, and runs code, needs a sandbox from the start."""
        if not spec.is_built_in or not SCORERS[spec.name].runs_code:
            return
        try:
            self._sandbox()
        except SandboxRefused as refused:
            got = f"{spec.name} with {refused.got}"
            raise BadFunction("RewardFunction", got, refused.why, refused.allowed) from None

    def _sandbox(self) -> Runner:
        """The same for all calls; opened when the first needs it."""
        if self._opened is None:
            self._opened = self._settings.open()
        return self._opened


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    functions = Functions()
    answer_requests(requests, answers, lambda body: _encode(functions.answer(_decode(body))))


def _raised(number: int, error: BaseException) -> Called:
    reason = "RewardMemory" if isinstance(error, MemoryError) else "RewardRaised"
    got, why = raised(error, __file__)
    return Called(number, reason_code=reason, got=got, why=why)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
