"""Scores responses in child processes that are killed when they take too long."""

import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ppojob_api.v1alpha1.rollout import RewardSpec, SandboxSpec
from ppojob_trainer.children.frames import FrameError
from ppojob_trainer.children.pool import (
    ATTEMPTS,
    DEFAULT_MEMORY_BYTES,
    START_SECONDS,
    ChildPool,
    NotStarted,
)
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, NonFiniteReward, RewardFailed
from ppojob_trainer.rewards.records import RewardItem, RewardResult
from ppojob_trainer.rewards.routing import SCORERS, route
from ppojob_trainer.rewards.wire import (
    Called,
    CallFunction,
    FunctionSpec,
    Loaded,
    LoadFunctions,
)
from ppojob_trainer.sandbox.settings import SandboxSettings

BUILT_IN_SECONDS = 60.0
"""Where rows are routed; the first call of a scorer may import a library in it."""
DIED = "RewardDied"
TOLD_CHARACTERS = 2_000
"""Of a response that could not be scored."""


_FIELDS = {
    "RewardModule": "source.path",
    "RewardFunction": "function",
    "RewardArguments": "arguments",
}
"""Fields of a reward that the reason codes of `BadFunction` are about."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A reward function of the job.

    Attributes:
        label: how messages name it.
        name: how its values are named; of several functions of one name, the later are numbered.
        spec: what the child loads.
        weight: factor of its score.
        seconds: time limit of a call.
        error_score: what stands for a call that fails; None where it fails the job.
    """

    label: str
    name: str
    spec: FunctionSpec
    weight: float
    seconds: float
    error_score: float | None = None


class ScoringPool(Closeable):
    """Children that score responses; each call has a time limit that nothing can outlive.

    When a call is too slow, or its process dies, that process and everything it started are killed,
    and the next call gets another. The call of a process that died is made once more: the process
    may have been killed by something else.

    Args:
        rewards: ``spec.rewards``; empty for the built-in scorer of each row's data source.
        sandbox: ``spec.sandbox``.
        processes: children.
        memory_bytes: limit of each process's data.
        variables: names of environment variables that the functions see, where they are set.
        log: where children's output goes.

    Raises:
        ConfigError: functions cannot be loaded; every problem, one line each.
        RewardFailed: processes are killed again and again while they load them.
    """

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        *,
        sandbox: SandboxSpec | None = None,
        processes: int = 1,
        memory_bytes: int | None = DEFAULT_MEMORY_BYTES,
        variables: Sequence[str] = (),
        log: logging.Logger | None = None,
    ) -> None:
        self._sandbox = SandboxSettings.of(sandbox or SandboxSpec())
        self._functions = _functions(rewards, self._sandbox.seconds)
        self._is_routed = not rewards
        self._log = log or logging.getLogger(__name__)
        self._numbers = itertools.count(1)
        try:
            self._children = ChildPool(
                "ppojob_trainer.rewards.child",
                count=processes,
                load=self._load,
                memory_bytes=memory_bytes,
                variables=variables,
                log=self._log,
            )
        except NotStarted as problem:
            raise _not_started(problem) from None

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Score responses, several at one time; the answer is in their order.

        Raises:
            RewardFailed: a function raised, hung, died or returned nonsense, and has no score for
                that. The rest is not scored.
            NonFiniteReward: the same for NaN and infinity.
        """
        stop = threading.Event()
        futures = [self._children.submit(self._score_one, item, stop) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            stop.set()
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End all children, at once also those that are at work. Idempotent."""
        self._children.close()

    def _score_one(self, item: RewardItem, stop: threading.Event) -> RewardResult:
        if stop.is_set():
            raise RewardFailed(f"row {item.row}", "not scored: another response failed")
        chosen = self._chosen(item)
        answers: list[tuple[_Function, Called]] = []
        for position in chosen:
            function = self._functions[position]
            answer = self._call(position, function, item)
            if function.error_score is not None:
                answer = self._forgiven(function, function.error_score, item, answer)
            elif answer.reason_code:
                stop.set()
                raise _failure(function, item, answer)
            answers.append((function, answer))
        return _combined(answers)

    def _forgiven(
        self, function: _Function, error_score: float, item: RewardItem, answer: Called
    ) -> Called:
        """What counts where failed calls have a score of their own; how many is a metric."""
        if not answer.reason_code:
            return Called(answer.number, answer.score, {**answer.extras, "failed": 0.0})
        self._log.warning("%s; it counts as %g", _failure(function, item, answer), error_score)
        return Called(answer.number, error_score, {"failed": 1.0})

    def _chosen(self, item: RewardItem) -> list[int]:
        if not self._is_routed:
            return list(range(len(self._functions)))
        name = route(item.data_source)
        if name is None:
            raise RewardFailed(
                f"row {item.row}",
                f"got data source {item.data_source!r}: no scorer knows it; "
                "one that docs/rewards.md lists, or functions in spec.rewards",
            )
        return [list(SCORERS).index(name)]

    def _call(self, position: int, function: _Function, item: RewardItem) -> Called:
        """Call one function; what goes wrong becomes an answer.

        A process can die of something else than its call (the kernel is out of memory, somebody
        sends a signal): only a call that ends a second process too is to blame.
        """
        for _ in range(ATTEMPTS):
            answer = self._call_once(position, function, item)
            if answer.reason_code != DIED:
                break
        return answer

    def _call_once(self, position: int, function: _Function, item: RewardItem) -> Called:
        """Call one function in an idle child, or in a new one."""
        number = next(self._numbers)
        request = CallFunction(
            number,
            position,
            item.data_source,
            item.response,
            msgspec.json.encode(item.ground_truth),
            msgspec.json.encode(item.extra_info),
            item.response_tokens,
            item.finish_reason,
        )

        def read(body: bytes) -> Called:
            answer = msgspec.msgpack.decode(body, type=Called)
            if answer.number != number:
                raise ChildDied("gave an answer to another call")
            return answer

        try:
            return self._children.call(msgspec.msgpack.encode(request), function.seconds, read)
        except ChildTimeout:
            return Called(
                number,
                reason_code="RewardTimeout",
                got=f"no score after {function.seconds:g} s",
                why="killed with everything it had started",
            )
        except (ChildDied, FrameError, msgspec.MsgspecError) as death:
            return Called(number, reason_code=DIED, got="no score", why=f"its process {death}")
        except NotStarted as problem:
            raise _not_started(problem) from None

    def _load(self, child: BoundedProcess) -> None:
        specs = [function.spec for function in self._functions]
        request = LoadFunctions(specs, self._sandbox, self._is_routed)
        try:
            body = child.call(msgspec.msgpack.encode(request), START_SECONDS)
            loaded = msgspec.msgpack.decode(body, type=Loaded)
        except ChildKilled:
            raise
        except (ChildTimeout, ChildDied) as error:
            reason = str(error) or f"gave no answer in {START_SECONDS:g} s"
            raise ConfigError(
                f"spec.rewards: got files whose import {reason}: functions cannot be loaded; "
                "files that can be imported"
            ) from None
        if loaded.problems:
            raise ConfigError(
                f"spec.rewards[{problem.position}].{_FIELDS[problem.reason_code]}: "
                f"got {problem.got}: {problem.why}; {problem.allowed}"
                for problem in loaded.problems
            )


def _not_started(problem: NotStarted) -> RewardFailed:
    return RewardFailed(
        "spec.rewards",
        f"got files whose import {problem}: memory is short, or something kills them; more memory, "
        "or files that need less",
    )


def _functions(rewards: Sequence[RewardSpec], program_seconds: float) -> list[_Function]:
    """What the children load: the job's functions, or every scorer where rows are routed."""
    if not rewards:
        return [
            _Function(
                name,
                name,
                FunctionSpec(name, "", b"{}"),
                1.0,
                BUILT_IN_SECONDS + scorer.seconds(program_seconds, {}),
            )
            for name, scorer in SCORERS.items()
        ]
    names = _numbered([reward.function for reward in rewards])
    return [
        _Function(
            f"spec.rewards[{position}].function",
            name,
            FunctionSpec(
                reward.function,
                (reward.source.path or "") if reward.source else "",
                msgspec.json.encode(reward.arguments),
            ),
            reward.weight,
            reward.time_limit_seconds + _further_seconds(reward, program_seconds),
            reward.error_score,
        )
        for position, (reward, name) in enumerate(zip(rewards, names, strict=True))
    ]


def _further_seconds(reward: RewardSpec, program_seconds: float) -> float:
    """What programs of a response, or calls of a service, may take beside the function."""
    scorer = None if reward.source else SCORERS.get(reward.function)
    return scorer.seconds(program_seconds, reward.arguments) if scorer else 0.0


def _numbered(names: list[str]) -> list[str]:
    """``score``, ``score.2``, ``score.3``: files may have functions of one name."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name}.{counts[name]}")
    return numbered


def _failure(function: _Function, item: RewardItem, answer: Called) -> RewardFailed:
    where = f"{function.label} {function.spec.name!r}: row {item.row}"
    response = item.response[:TOLD_CHARACTERS]
    if answer.reason_code == "NonFiniteReward":
        value = _number(answer.got)
        return NonFiniteReward(where, value, answer.why, row=item.row, response=response)
    why = f": {answer.why}" if answer.why else ""
    reason = f"{answer.reason_code}: got {answer.got}{why}"
    return RewardFailed(where, reason, row=item.row, response=response)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # an integer of more digits than are shown
        return math.inf


def _combined(answers: list[tuple[_Function, Called]]) -> RewardResult:
    """The weighted sum, and the values that go with it.

    Values of one function keep their names; of several they are ``<function>/<name>``, with each
    function's own score as ``<function>/score``.
    """
    score = sum(function.weight * answer.score for function, answer in answers)
    extras: dict[str, float | str] = {}
    if len(answers) == 1:
        extras |= answers[0][1].extras
    else:
        for function, answer in answers:
            extras[f"{function.name}/score"] = answer.score
            extras |= {f"{function.name}/{key}": value for key, value in answer.extras.items()}
    shared = (answer.extras for _, answer in answers)
    given = next((found["acc"] for found in shared if "acc" in found), None)
    extras["acc"] = score if given is None else given
    return RewardResult(score, extras)
