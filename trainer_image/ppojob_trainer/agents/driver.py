"""Drives an engine through rows of several turns, by the engine's own clock.

What an engine draws depends, in its last bits, on which rows share its steps. So when an answer
comes must not decide when its row goes on: the answer to a turn that ended with engine step k is
admitted behind step k + d, never earlier and never later, in the order of the rows. If it is early
it waits; if it is late the engine waits; if no row runs, the clock jumps. The latency of tools is
hidden behind the d steps, and no bit depends on it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ppojob_api.problem import shown
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.remote_tools import RemoteTools
from ppojob_trainer.agents.turn_form import Turn
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.rollout.protocol import (
    Request,
    RolloutEngine,
    generation_phase,
    lost_requests,
)


class ToolFailed(PPOJobError):  # noqa: N818  it says what happened
    """A call failed, and the job says that it fails with it."""


@dataclass(frozen=True)
class _Waiting:
    """A row between two turns of the model.

    Attributes:
        due: the engine step behind which it goes on.
        wanted: what its last turn wanted.
        started: calls under way, as `RemoteTools.start` gives them; None without calls.
    """

    due: float
    wanted: Turn
    started: Any


@dataclass
class Driver:
    """Runs one generation phase.

    Attributes:
        delay: d, steps that the engine takes for other rows before a row goes on; infinity: until
            no row runs.
        fails: whether a failed call fails the job.
        is_enough: asked behind each step of the engine with the number of steps and of the rows
            that have ended; once it says so the phase ends, with the others as far as they came.
    """

    engine: RolloutEngine
    tools: RemoteTools | None
    delay: float = 0
    fails: bool = False
    is_enough: Callable[[int, int], bool] = lambda *_: False
    _episodes: Sequence[Episode] = ()
    _steps: int = 0
    _clock: int = 0
    _running: dict[str, int] = field(default_factory=dict)
    """Numbers of rows by the id of their request."""
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    """By number of the row."""

    def run(self, episodes: Sequence[Episode]) -> None:
        """Run rows of distinct names, none of them over, to their ends: one generation phase.

        Where it ends before, no call is under way: those that were made are waited for.

        Raises:
            RolloutError: the engine is busy, or loses a row.
            ToolFailed: a call failed, and `fails` is set.
            ValueError: the engine refuses a request.
        """
        self._episodes = episodes
        with generation_phase(self.engine) as submit:
            try:
                for number, episode in enumerate(episodes):
                    if (wanted := episode.opening()).calls:
                        self._wait(number, wanted)
                    else:
                        self._begin_turn(number, submit)
                while self._running or self._waiting:
                    self._continue_due(submit)
                    if self.engine.has_work():
                        self._step()
                        ended = len(episodes) - len(self._running) - len(self._waiting)
                        if self.is_enough(self._steps, ended):
                            self._end_phase()
                    elif self._running:
                        raise lost_requests(list(self._running))
            finally:
                for waiting in self._waiting.values():  # only after an error
                    if waiting.started is not None:
                        self._tools.give_up(waiting.started)

    def _begin_turn(self, number: int, submit: Callable[[Request], None]) -> None:
        """Have the engine begin the next turn of a row."""
        request = self._episodes[number].request()
        self._running[request.request_id] = number
        submit(request)

    def _continue_due(self, submit: Callable[[Request], None]) -> None:
        """Let rows go on that are due, in their order; where none runs, those that are due next."""
        now = float(self._clock)
        if self._waiting and not self._running:
            now = max(now, min(waiting.due for waiting in self._waiting.values()))
            self._clock = self._clock if math.isinf(now) else int(now)
        for number in sorted(n for n, waiting in self._waiting.items() if waiting.due <= now):
            self._answer(number)
            if not self._episodes[number].state.is_over:
                self._begin_turn(number, submit)

    def _end_phase(self) -> None:
        """Take what was drawn of the rows that run, and answer those that wait."""
        for request_id in list(self._running):
            self.engine.abort(request_id)
        while self._running and self.engine.has_work():
            self._step()
        for number in sorted(self._waiting):
            self._answer(number)

    def _answer(self, number: int) -> None:
        """Give a row that waits what it waits for."""
        episode, waiting = self._episodes[number], self._waiting[number]
        calls = waiting.wanted.calls
        if not calls:
            episode.reply(waiting.wanted.reply)
            del self._waiting[number]
            return
        turn = episode.state.answered + 1
        answers = episode.answer(calls, self._tools.answers(waiting.started))
        for call, answer in zip(calls, answers, strict=True):
            if self.fails and answer.failure:
                raise ToolFailed(
                    f"spec.agent.toolFailure: got fail: turn {turn} of "
                    f"{episode.place}: a call of {shown(call.name)} failed ({answer.failure}): "
                    f"{answer.text}"
                )
        del self._waiting[number]

    def _step(self) -> None:
        """One step of the engine; starts the calls of turns that ended."""
        finished = self.engine.step()
        self._steps += 1
        self._clock += 1
        for response in finished:
            number = self._running.pop(response.request_id)
            episode = self._episodes[number]
            wanted = episode.take(response)
            if episode.state.is_waiting:
                self._wait(number, wanted)

    def _wait(self, number: int, wanted: Turn) -> None:
        """Have a row wait for what it wants; starts its calls."""
        episode, started = self._episodes[number], None
        if wanted.calls:
            turn, seen = episode.state.answered, episode.seen
            started = self._tools.start(number, turn, wanted.calls, seen)
        self._waiting[number] = _Waiting(self._clock + self.delay, wanted, started)

    @property
    def _tools(self) -> RemoteTools:
        assert self.tools is not None, "rows of one turn call nothing"
        return self.tools
