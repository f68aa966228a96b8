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
    Finished,
    Request,
    RolloutEngine,
    generation_phase,
    lost_requests,
)
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall


class ToolFailed(PPOJobError):  # noqa: N818  it says what happened
    """A call failed, and the job says that it fails with it."""


@dataclass(frozen=True)
class Driver:
    """Runs generation phases.

    Attributes:
        delay: d, steps that the engine takes for other rows before a row goes on; infinity: until
            no row runs.
        fails: whether a failed call fails the job.
    """

    engine: RolloutEngine
    tools: RemoteTools
    delay: float
    fails: bool = False

    def run(self, episodes: Sequence[Episode]) -> None:
        """Run rows of distinct names to their ends: one generation phase.

        Raises:
            RolloutError: the engine is busy, or loses a row.
            ToolFailed: a call failed, and `fails` is set.
        """
        with generation_phase(self.engine) as submit:
            phase = _Phase(self, episodes, submit)
            try:
                phase.run()
            finally:
                phase.give_up()


@dataclass(frozen=True)
class _Waiting:
    """A row between two turns of the model: when it is due, what it wanted, and its calls."""

    due: float
    wanted: Turn
    begun: Any


@dataclass
class _Phase:
    """A phase under way."""

    driver: Driver
    episodes: Sequence[Episode]
    send: Callable[[Request], None]
    _clock: int = 0
    _running: dict[str, int] = field(default_factory=dict)
    """Rows by the id of their request."""
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    """By row."""

    def run(self) -> None:
        """Run all rows to their ends."""
        for number in range(len(self.episodes)):
            self._submit(number)
        while self._running or self._waiting:
            self._admit()
            if self.driver.engine.has_work():
                self._step()
            elif self._running:
                raise lost_requests(list(self._running))

    def give_up(self) -> None:
        """Wait for no call; after an error there may be some."""
        for waiting in self._waiting.values():
            if waiting.wanted.calls:
                self.driver.tools.give_up(waiting.begun)

    def _submit(self, number: int) -> None:
        """Have the engine begin the next turn of a row."""
        request = self.episodes[number].request()
        self._running[request.request_id] = number
        self.send(request)

    def _step(self) -> None:
        """One step of the engine; begins the calls of turns that ended."""
        finished = self.driver.engine.step()
        self._clock += 1
        for response in finished:
            self._take(response)

    def _admit(self) -> None:
        """Let rows go on that are due, in their order; where none runs, those that are due next."""
        now = float(self._clock)
        if self._waiting and not self._running:
            now = max(now, min(waiting.due for waiting in self._waiting.values()))
            self._clock = self._clock if math.isinf(now) else int(now)
        for number in sorted(n for n, waiting in self._waiting.items() if waiting.due <= now):
            if self._goes_on(self.episodes[number], self._waiting[number]):
                self._submit(number)
            del self._waiting[number]

    def _goes_on(self, episode: Episode, waiting: _Waiting) -> bool:
        if not waiting.wanted.calls:
            return episode.reply(waiting.wanted.reply)
        answers = self.driver.tools.answers(waiting.begun)
        if self.driver.fails:
            _refuse_failures(episode, waiting.wanted.calls, answers)
        return episode.answer(waiting.wanted.calls, answers)

    def _take(self, response: Finished) -> None:
        number = self._running.pop(response.request_id)
        episode = self.episodes[number]
        wanted = episode.take(response)
        if not wanted.calls and not wanted.reply:
            return
        begun = None
        if wanted.calls:
            begun = self.driver.tools.start(number, episode.turn, wanted.calls)
        self._waiting[number] = _Waiting(self._clock + self.driver.delay, wanted, begun)


def _refuse_failures(
    episode: Episode, calls: Sequence[ToolCall], answers: Sequence[ToolAnswer]
) -> None:
    for call, answer in zip(calls, answers, strict=True):
        if answer.failure:
            raise ToolFailed(
                f"spec.agent.toolFailure: got fail: turn {episode.turn + 1} of {episode.place}: a "
                f"call of {shown(call.name)} failed ({answer.failure}): {answer.text}"
            )
