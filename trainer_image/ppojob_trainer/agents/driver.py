"""Agent loop driver: generates multi-turn rows, with tool calls admitted by the engine's clock.

The last bits of generated tokens depend on which rows share an engine step. So the arrival time of
an answer must not decide when its row continues: the answer to a turn that ended with engine step k
is admitted after step k + d, never earlier and never later, in row order. An early answer waits;
for a late one the engine waits; if no row runs, the clock jumps. The d steps hide the latency of
tools, and no bit depends on it.
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
from ppojob_trainer.rollout.protocol import Request, RolloutEngine, generation_phase, lost_requests
from ppojob_trainer.rpc.messages.agents import ToolAnswer


class ToolFailed(PPOJobError):  # noqa: N818  the name in messages
    """A call failed, and the job is configured to fail with it."""


@dataclass(frozen=True)
class _Waiting:
    """A row between two turns of the model."""

    due: float  # the engine step after which it continues
    wanted: Turn  # the calls or reply that its last turn waits for
    started: Any  # calls in flight, from `RemoteTools.start`; None without calls


@dataclass
class Driver:
    """Runs one generation phase."""

    engine: RolloutEngine
    tools: RemoteTools | None
    # d, engine steps of other rows before a row continues; infinity: until no row runs.
    delay: float = 0
    fails: bool = False
    # Called after each engine step with the number of steps and of finished rows; once true the
    # phase ends, with the other rows unfinished.
    is_enough: Callable[[int, int], bool] = lambda *_: False
    _episodes: Sequence[Episode] = ()
    _steps: int = 0
    _clock: int = 0
    _running: dict[str, int] = field(default_factory=dict)
    """Numbers of rows by the id of their request."""
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    """By number of the row."""
    _ending: dict[int, Any] = field(default_factory=dict)
    """Started calls that score and close the environments of rows, by number of the row."""

    def run(self, episodes: Sequence[Episode]) -> None:
        """Run unfinished rows of distinct names to their ends: one generation phase.

        If it ends early, started calls are waited for. Raises RolloutError if the engine is busy or
        loses a row, ValueError if it refuses a request, and ToolFailed with `fails`.
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
                for number in sorted(self._ending):
                    self._score(number)
            finally:
                left = (waiting.started for waiting in self._waiting.values())
                for started in (*left, *self._ending.values()):  # only after an error
                    if started is not None:
                        self._tools.cancel(started)

    def _begin_turn(self, number: int, submit: Callable[[Request], None]) -> None:
        """Submit the next turn of a row to the engine."""
        request = self._episodes[number].request()
        self._running[request.request_id] = number
        submit(request)

    def _continue_due(self, submit: Callable[[Request], None]) -> None:
        """Continue the rows that are due, in row order; if no row runs, those that are due next."""
        now = float(self._clock)
        if self._waiting and not self._running:
            now = max(now, min(waiting.due for waiting in self._waiting.values()))
            self._clock = self._clock if math.isinf(now) else int(now)
        for number in sorted(n for n, waiting in self._waiting.items() if waiting.due <= now):
            self._answer(number)
            if not self._episodes[number].state.is_over:
                self._begin_turn(number, submit)

    def _end_phase(self) -> None:
        """Store the partial turns of running rows, and answer waiting ones."""
        for request_id in list(self._running):
            self.engine.abort(request_id)
        while self._running and self.engine.has_work():
            self._step()
        for number in sorted(self._waiting):
            self._answer(number)

    def _answer(self, number: int) -> None:
        """Give a waiting row its answers."""
        episode, waiting = self._episodes[number], self._waiting[number]
        calls = waiting.wanted.calls
        if not calls:
            episode.add_reply(waiting.wanted.reply)
            del self._waiting[number]
            self._end_if_over(episode, number)
            return
        turn = episode.state.answered + 1
        answers = episode.add_answers(calls, self._tools.wait(waiting.started))
        for call, answer in zip(calls, answers, strict=True):
            self._check(answer, f"turn {turn} of {episode.place}: a call of {shown(call.name)}")
        del self._waiting[number]
        self._end_if_over(episode, number)

    def _score(self, number: int) -> None:
        """Give a row that has ended the score of its environments, if they have one."""
        episode = self._episodes[number]
        for answer in self._tools.wait(self._ending.pop(number)):
            self._check(answer, f"{episode.place}: the score of its environment")
            episode.add_score(answer)

    def _check(self, answer: ToolAnswer, what: str) -> None:
        if self.fails and answer.failure:
            raise ToolFailed(
                f"spec.agent.toolFailure: got fail: {what} failed ({answer.failure}): {answer.text}"
            )

    def _step(self) -> None:
        """Run one engine step, and start the calls of turns that ended."""
        finished = self.engine.step()
        self._steps += 1
        self._clock += 1
        for response in finished:
            number = self._running.pop(response.request_id)
            episode = self._episodes[number]
            wanted = episode.add_response(response)
            if episode.state.is_waiting:
                self._wait(number, wanted)
            self._end_if_over(episode, number)

    def _end_if_over(self, episode: Episode, number: int) -> None:
        """Have the environments of a row that has ended scored and closed, while others go on."""
        state = episode.state
        if state.is_over and episode.agent.environments:
            self._ending[number] = self._tools.end_row(number, state.answered, state.acted)

    def _wait(self, number: int, wanted: Turn) -> None:
        """Let a row wait for its answers; starts its calls."""
        episode, started = self._episodes[number], None
        if wanted.calls:
            state, seen = episode.state, episode.seen_by(wanted.calls)
            started = self._tools.start(number, state.answered, wanted.calls, seen, state.acted)
        self._waiting[number] = _Waiting(self._clock + self.delay, wanted, started)

    @property
    def _tools(self) -> RemoteTools:
        assert self.tools is not None, "rows of one turn call nothing"
        return self.tools
