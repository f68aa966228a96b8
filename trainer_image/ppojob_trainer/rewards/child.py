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
from pathlib import Path

import msgspec

from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.custom import BadFunction, load_function, of_the_response
from ppojob_trainer.rewards.results import BadResult, read_result
from ppojob_trainer.rewards.routing import SCORERS
from ppojob_trainer.rewards.wire import (
    Called,
    CallFunction,
    FunctionProblem,
    FunctionSpec,
    Loaded,
    LoadFunctions,
    ScorerRequest,
)
from ppojob_trainer.sandbox.executor import Sandbox, SandboxRefused
from ppojob_trainer.sandbox.settings import SandboxSettings


@dataclass(frozen=True, slots=True)
class _Function:
    """A loaded function.

    Attributes:
        call: takes the row's columns and the arguments by name.
        arguments: JSON object.
        folder: where its file lies; empty for a built-in scorer.
        wanted: what it takes of the response besides the text.
    """

    call: Callable[..., object]
    arguments: bytes
    folder: str
    wanted: frozenset[str] = frozenset()


class Functions:
    """The loaded functions, called by position."""

    def __init__(self) -> None:
        self._functions: list[_Function] = []
        self._settings: SandboxSettings
        self._is_routed = False
        self._opened: Sandbox | None = None
        self._neighbours = Neighbours()
        # One loop for all calls: what a coroutine leaves open (a connection, say) lives on in it.
        self._loop = asyncio.Runner()

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
        return Loaded(problems)

    def call(self, request: CallFunction) -> Called:
        """Call a function with objects decoded for this call alone."""
        function = self._functions[request.function]
        arguments = {name: getattr(request, name) for name in function.wanted}
        arguments |= msgspec.json.decode(function.arguments)
        try:
            self._neighbours.enter(function.folder)
            value = function.call(
                data_source=request.data_source,
                solution_str=request.response,
                ground_truth=msgspec.json.decode(request.ground_truth),
                extra_info=msgspec.json.decode(request.extra_info),
                **arguments,
            )
            if inspect.iscoroutine(value):
                value = self._loop.run(value)
            score, extras = read_result(value)
        except BadResult as bad:
            return Called(request.number, reason_code=bad.reason_code, got=bad.got, why=bad.why)
        except BaseException as error:  # SystemExit and its kin are answers too
            return _raised(request.number, error)
        return Called(request.number, score, extras)

    def _load(self, position: int, spec: FunctionSpec) -> _Function:
        arguments = msgspec.json.decode(spec.arguments)
        if not spec.path:
            called = load_scorer(spec.name, arguments, self._sandbox, late=self._is_routed)
            return _Function(called, spec.arguments, "")
        folder = str(Path(spec.path).resolve().parent)
        self._neighbours.enter(folder)
        function = load_function(spec.path, spec.name, arguments, position)
        return _Function(function, spec.arguments, folder, of_the_response(function))

    def _check_sandbox(self, spec: FunctionSpec) -> None:
        """A scorer that is asked for by name, and runs code, needs a sandbox from the start."""
        if spec.path or not SCORERS[spec.name].runs_code:
            return
        try:
            self._sandbox()
        except SandboxRefused as refused:
            got = f"{spec.name} with {refused.got}"
            raise BadFunction("RewardFunction", got, refused.why, refused.allowed) from None

    def _sandbox(self) -> Sandbox:
        """The same for all calls; opened when the first needs it."""
        if self._opened is None:
            self._opened = self._settings.open()
        return self._opened


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    functions = Functions()
    decoder = msgspec.msgpack.Decoder(ScorerRequest)

    def answer(body: bytes) -> bytes:
        request = decoder.decode(body)
        if isinstance(request, LoadFunctions):
            return msgspec.msgpack.encode(functions.load(request))
        return msgspec.msgpack.encode(functions.call(request))

    answer_requests(requests, answers, answer)


def _raised(number: int, error: BaseException) -> Called:
    reason = "RewardMemory" if isinstance(error, MemoryError) else "RewardRaised"
    got, why = raised(error)
    return Called(number, reason_code=reason, got=got, why=why)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
