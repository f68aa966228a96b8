"""Scoring pool: runs reward functions in child processes with time limits."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ppojob_api.v1alpha1.rollout import RewardSpec, SandboxSpec
from ppojob_trainer.children import pool
from ppojob_trainer.children.frames import FrameError
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards import wire
from ppojob_trainer.rewards.records import DROPPED, FAILED, RewardItem, RewardResult
from ppojob_trainer.rewards.routing import SCORERS, route
from ppojob_trainer.sandbox.executor import Settings, answer_seconds

_log = logging.getLogger(__name__)

BUILT_IN_SECONDS = 60.0
"""Timeout of calls routed by data source, in which a scorer may import a library."""
TOLD_CHARACTERS = 2_000
"""Length limit of a response in an error."""
BATCH_BYTES = 16 * 1024**2
"""Size limit of the responses and ground truths of one call."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A reward function of the job."""

    label: str
    name: str  # prefix of its values; further functions of the same name are numbered
    spec: RewardSpec
    seconds: float
    drops: bool  # whether a response is dropped from training if a call fails


class ScoringPool(Closeable):
    """Child processes that score responses, with a time limit per call.

    If a call is too slow, or its process dies, that process and its descendants are killed, and the
    next call gets another one. A call whose process died is retried once: it may have been killed
    from outside.

    Args:
        rewards: ``spec.rewards``; empty for the built-in scorer of each row's data source.
        memory_bytes: limit of each process's data segment.
        variables: names of environment variables that the functions get, if set.
        judge: the job's judge; a call may wait for it in addition to its limit.

    Raises:
        ConfigError: functions cannot be loaded; every problem, one line each.
        RewardFailed: processes are killed repeatedly while they load the functions.
    """

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        *,
        sandbox: SandboxSpec | None = None,
        processes: int = 1,
        memory_bytes: int | None = pool.DEFAULT_MEMORY_BYTES,
        variables: Sequence[str] = (),
        judge: wire.Judge | None = None,
    ) -> None:
        settings = msgspec.convert(sandbox or SandboxSpec(), Settings, from_attributes=True)
        patience = judge.patience if judge is not None else 0.0
        self._functions = _functions_of(rewards, answer_seconds(settings), patience)
        self._is_routed = not rewards
        self._numbers = itertools.count(1)
        specs = msgspec.convert(
            [one.spec for one in self._functions], list[wire.Function], from_attributes=True
        )
        self._request = wire.LoadFunctions(specs, settings, self._is_routed, judge)
        self._batched, self._grouped = frozenset[int](), frozenset[int]()
        with _failures():
            self._children = pool.ChildPool(
                "ppojob_trainer.rewards.child",
                count=processes,
                load=self._load,
                memory_bytes=memory_bytes,
                variables=variables,
                log=_log,
            )

    def score(
        self, items: Sequence[RewardItem], on_scored: Callable[[], object] = lambda: None
    ) -> list[RewardResult]:
        """Score responses concurrently; results are in order.

        `on_scored` is called once per scored response. Raises RewardFailed if a function raised,
        hung, died or returned an invalid value, and has no error score. The remaining responses are
        not scored.
        """
        stop = threading.Event()
        runs = [(position, list(range(len(items)))) for position in sorted(self._batched)]
        runs += [(position, rows) for position in sorted(self._grouped) for rows in _groups(items)]
        together = [
            (*run, self._children.submit(self._score_all, run[0], [items[n] for n in run[1]], stop))
            for run in runs
        ]
        single = [self._children.submit(self._score_one, item, stop) for item in items]
        futures: list[Future[Any]] = [*(scores for _, _, scores in together), *single]
        try:
            for _, _, of_many in together:
                of_many.result()
            for of_one in single:
                of_one.result()
                on_scored()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
        found = [future.result() for future in single]
        for position, rows, scores in together:
            for row, answer in zip(rows, scores.result(), strict=True):
                found[row][position] = answer
        return [
            _combined([(self._functions[which], answers[which]) for which in sorted(answers)])
            for answers in found
        ]

    def close(self) -> None:
        """Kill all child processes, also busy ones. Idempotent."""
        self._children.close()

    def _load(self, child: BoundedProcess) -> None:
        sources = [function.spec.source for function in self._functions]
        loaded = pool.import_files(
            child,
            self._request,
            wire.FunctionsLoaded,
            files=(one.file or one.package or "" for one in sources if one is not None),
            where="spec.rewards",
            what="functions",
        )
        self._batched = frozenset(loaded.batched)
        if not self._is_routed:  # no data source has such a scorer
            self._grouped = frozenset(loaded.grouped)

    def _score_one(self, item: RewardItem, stop: threading.Event) -> dict[int, wire.Scored]:
        """Return the scores of the functions that take one response, by their position."""
        if stop.is_set():
            raise RewardFailed(f"row {item.row}", "not scored: another response failed")
        return {
            position: self._score_all(position, [item], stop)[0]
            for position in self._chosen(item)
            if position not in self._batched | self._grouped
        }

    def _score_all(
        self, position: int, items: Sequence[RewardItem], stop: threading.Event
    ) -> list[wire.Scored]:
        """Return a function's score of each response, in few calls; a group is one call."""
        function, answers = self._functions[position], list[wire.Scored]()
        for some in [items] if position in self._grouped else _runs(items):
            called = self._call(position, function, some)
            if called.failure is not None:
                answers += [self._resolved(function, some, called.failure, stop)] * len(some)
                continue
            answers += [
                self._resolved(function, [item], answer, stop)
                for item, answer in zip(some, called.scores, strict=True)
            ]
        return answers

    def _resolved(
        self,
        function: _Function,
        items: Sequence[RewardItem],
        answer: wire.Scored,
        stop: threading.Event,
    ) -> wire.Scored:
        """Return the score of a call, or the error score if it failed.

        With an error score, the value `FAILED` is 1 for failed calls. Raises RewardFailed if it
        failed, and there is no error score.
        """
        score = function.spec.error_score
        may_fail = score is not None or function.drops
        if not answer.reason_code:
            return wire.Scored(answer.score, {**answer.extras, FAILED: 0.0}) if may_fail else answer
        failure = _failure(function, items, answer)
        if not may_fail:
            stop.set()
            raise failure
        outcome = "it is dropped" if function.drops else f"it scores {score:g}"
        _log.warning("%s; %s", failure, outcome)
        return wire.Scored(score or 0.0, {FAILED: 1.0})

    def _chosen(self, item: RewardItem) -> list[int]:
        if not self._is_routed:
            return list(range(len(self._functions)))
        name = route(item.data_source)
        if name is None:
            raise RewardFailed(
                f"row {item.row}",
                f"got data source {item.data_source!r}: no scorer supports it; "
                "one that docs/rewards.md lists, or functions in spec.rewards",
            )
        return [list(SCORERS).index(name)]

    def _call(self, position: int, function: _Function, items: Sequence[RewardItem]) -> wire.Called:
        """Call one function for responses; a failure becomes an answer.

        A process can die of other causes than its call (out of memory, a signal), so a call has
        failed only if a second process also ended during it.
        """
        columns = msgspec.json.encode(
            {
                "data_sources": [item.data_source for item in items],
                "solution_strs": [item.response for item in items],
                "ground_truths": [item.ground_truth for item in items],
                "extra_infos": [item.extra_info for item in items],
                "response_tokens": [item.response_tokens for item in items],
                "finish_reasons": [item.finish_reason for item in items],
            }
        )
        failure = wire.Scored()
        seconds = function.seconds * (len(items) if position in self._grouped else 1)
        for _ in range(pool.ATTEMPTS):
            request = wire.CallFunction(next(self._numbers), position, columns)
            try:
                with _failures():
                    return self._children.call(request, seconds, wire.Called)
            except ChildTimeout:
                got = f"no score after {seconds:g} s"
                why = "killed with its descendants"
                failure = wire.Scored(reason_code="RewardTimeout", got=got, why=why)
                break
            except (ChildDied, FrameError, msgspec.MsgspecError) as death:
                why = f"its process {death}"
                failure = wire.Scored(reason_code="RewardDied", got="no score", why=why)
        return wire.Called(0, failure=failure)


def _functions_of(
    rewards: Sequence[RewardSpec], program_seconds: float, patience: float
) -> list[_Function]:
    """Return the functions to load: those of the job, or every scorer if rows are routed.

    Every call has `patience` more seconds, and those of programs `program_seconds` for each.
    """
    routed = [RewardSpec(function=name, time_limit_seconds=BUILT_IN_SECONDS) for name in SCORERS]
    found, names = list[_Function](), list[str]()
    for position, spec in enumerate(rewards or routed):
        names.append(spec.function)
        count = names.count(spec.function)
        name = f"{spec.function}.{count}" if count > 1 else spec.function
        label = f"spec.rewards[{position}].function" if rewards else name
        seconds = spec.time_limit_seconds + patience
        if spec.source is None and spec.function in SCORERS:
            # Programs of a response, and calls of a service, take additional time.
            seconds += SCORERS[spec.function].seconds(program_seconds, spec.arguments)
        found.append(_Function(label, name, spec, seconds, drops=spec.on_error == "drop"))
    return found


@contextmanager
def _failures() -> Iterator[None]:
    """Convert failures of the pool to failures of rewards."""
    try:
        yield
    except pool.NotStarted as problem:
        raise RewardFailed("spec.rewards", str(problem)) from None
    except pool.PoolClosed:
        raise RewardFailed("scoring", "the pool has been closed") from None


def _groups(items: Sequence[RewardItem]) -> list[list[int]]:
    """Return the indices of the responses to each prompt, in order."""
    found: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        found.setdefault(item.prompt, []).append(place)
    return list(found.values())


def _runs(items: Sequence[RewardItem]) -> Iterator[list[RewardItem]]:
    """Split rows into ranges that fit one call; usually one."""
    run, filled = list[RewardItem](), 0
    for item in items:
        columns = [item.response, item.ground_truth, item.extra_info, item.data_source]
        size = len(msgspec.json.encode(columns))
        if run and filled + size > BATCH_BYTES:
            yield run
            run, filled = [], 0
        run.append(item)
        filled += size
    if run:
        yield run


def _failure(function: _Function, items: Sequence[RewardItem], answer: wire.Scored) -> RewardFailed:
    """Build the error of a failed call, for one response or several."""
    name = f"{function.label} {function.spec.function!r}"
    why = f": {answer.why}" if answer.why else ""
    reason = f"{answer.reason_code}: got {answer.got}{why}"
    first = items[0]
    rows = f"rows {first.row} to {items[-1].row}" if len(items) > 1 else f"row {first.row}"
    response = first.response[:TOLD_CHARACTERS]
    return RewardFailed(f"{name}: {rows}", reason, row=first.row, response=response)


def _combined(answers: list[tuple[_Function, wire.Scored]]) -> RewardResult:
    """Return the weighted sum of the scores, with the values of the functions.

    The values of a single function keep their names; those of several are ``<function>/<name>``,
    with each function's score as ``<function>/score``.
    """
    score = sum(function.spec.weight * answer.score for function, answer in answers)
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
    if any(function.drops for function, _ in answers):
        failed = [answer.extras.get(FAILED) for function, answer in answers if function.drops]
        extras[DROPPED] = float(1.0 in failed)
    return RewardResult(score, extras)
