"""Conversations over a simulated engine: what of the tools' time is hidden, what the driver costs.

    python benchmarks/agent_clock.py

Engine and tools are simulated, and so is their time; the driver, its rows and its clock are real.
An engine step takes 10 ms, whatever runs. Prints one line of JSON:

- `latency_ratio`: a phase of 64 rows of three turns on an engine of 16 sequences, with calls of
  0.5 s and `toolSteps` 32, over the larger of decoding alone and of the calls alone;
  `barrier_ratio`: the same with `toolSteps` -1.
- `driver_share`: processor time of the driver over the time of the phase, for 2,000 rows of six
  turns on an engine of 256 sequences, with calls of 0.1 to 20 s, long-tailed.
- `growth_mib`: what the resident memory grew by over 50 such phases, after the first ten.
"""

import heapq
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.driver import Driver
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.turn_form import Turn
from ppojob_trainer.rollout.protocol import Finished, Request, SamplingParams
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall

STEP_SECONDS = 0.01
CALLS, ENDS = 1, 2
ANSWER = [3] * 40
SAMPLING = SamplingParams(1.0, 1.0, -1, 1, (CALLS, ENDS))


@dataclass
class Clock:
    """Simulated time, and how much processor time the simulation itself took."""

    now: float = 0.0
    own_seconds: float = 0.0


@dataclass
class Engine:
    """Runs so many sequences at a time, first come first served; how long a turn is its seed says.

    Every step advances the clock. All turns of a row but the last end with a call.
    """

    clock: Clock
    sequences: int
    turns: int
    _queue: list[Request] = field(default_factory=list)
    _running: list[tuple[int, int, Request, int]] = field(default_factory=list)
    """A heap of the step at which it ends, how many began before it, the request, its length."""
    _steps: int = 0
    _begun: int = 0

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def step(self) -> list[Finished]:
        began = time.process_time()
        while self._queue and len(self._running) < self.sequences:
            request = self._queue.pop(0)
            drawn = random.Random(request.seed).lognormvariate(4.0, 0.5)
            length = min(max(int(drawn), 8), 400)
            self._begun += 1
            heapq.heappush(self._running, (self._steps + length, self._begun, request, length))
        self._steps += 1
        self.clock.now += STEP_SECONDS
        finished = []
        while self._running and self._running[0][0] <= self._steps:
            *_, request, length = heapq.heappop(self._running)
            last = CALLS if request.seed % self.turns < self.turns - 1 else ENDS
            tokens = (*[5] * (length - 1), last)
            finished.append(Finished(request.request_id, tokens, (0.0,) * length, "stop", 0))
        self.clock.own_seconds += time.process_time() - began
        return finished

    def has_work(self) -> bool:
        return bool(self._queue or self._running)

    def reset_cache(self) -> None:
        """It has none."""

    def abort(self, request_id: str) -> None:
        """Nothing is aborted here."""


@dataclass
class Tools:
    """Calls of long-tailed seconds, so many at once; a wait for an answer advances the clock."""

    clock: Clock
    parallel: int
    shortest: float
    longest: float

    def __post_init__(self) -> None:
        self._free = [0.0] * self.parallel
        self.seconds = 0.0

    def start(self, number: int, turn: int, calls: Sequence[ToolCall], _: None) -> float:
        share = random.Random(number * 1000 + turn).paretovariate(1.2) - 1.0
        seconds = min(self.shortest * (1.0 + share), self.longest)
        self.seconds += seconds
        begins = max(heapq.heappop(self._free), self.clock.now)
        heapq.heappush(self._free, begins + seconds)
        return begins + seconds

    def wait(self, begun: float) -> list[ToolAnswer]:
        self.clock.now = max(self.clock.now, begun)
        return [ToolAnswer("", 0.0, "")]

    def cancel(self, begun: float) -> None:
        """Nobody waits."""


class Form:
    """A call where a turn ends with one."""

    images = None

    def parse(self, tokens: Sequence[int]) -> Turn:
        return Turn((ToolCall("tool", "{}"),)) if tokens[-1] == CALLS else Turn()

    def encode_answers(self, *_: object) -> list[int]:
        return ANSWER

    def encode_reply(self, *_: object) -> list[int]:
        return ANSWER


@dataclass(frozen=True)
class Setting:
    """Rows, engine and tools of a phase."""

    rows: int
    turns: int
    sequences: int
    parallel: int
    shortest: float
    longest: float


@dataclass(frozen=True)
class Phase:
    """What a phase took: simulated seconds, those if nothing but calls ran, and the driver's."""

    seconds: float
    calls_alone: float
    driver_seconds: float


FEW = Setting(rows=64, turns=3, sequences=16, parallel=64, shortest=0.5, longest=0.5)
MANY = Setting(rows=2000, turns=6, sequences=256, parallel=512, shortest=0.1, longest=20.0)


def run(setting: Setting, delay: float, *, quick: bool = False) -> Phase:
    clock = Clock()
    shortest, longest = (0.0, 0.0) if quick else (setting.shortest, setting.longest)
    tools = Tools(clock, setting.parallel, shortest, longest)
    engine = Engine(clock, setting.sequences, setting.turns)
    agent, tokens = AgentSpec(), setting.turns * 500

    def episode(row: int) -> Episode:
        prompt = (*range(10, 74), row)
        seed_of = lambda turn: row * setting.turns + turn  # noqa: E731
        return Episode(f"{row}", prompt, SAMPLING, seed_of, agent, tokens, Form())  # type: ignore[arg-type]

    episodes = [episode(row) for row in range(setting.rows)]
    began = time.process_time()
    Driver(engine, tools, delay).run(episodes)  # type: ignore[arg-type]
    spent = time.process_time() - began - clock.own_seconds
    drawn = {sum(segment.is_trained for segment in e.trajectory.segments) for e in episodes}
    assert drawn == {setting.turns}
    return Phase(clock.now, tools.seconds / setting.parallel, spent)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    alone = run(FEW, math.inf, quick=True).seconds
    hidden, barrier = run(FEW, 32), run(FEW, math.inf)
    least = max(alone, hidden.calls_alone)
    many = [run(MANY, 32) for _ in range(10)]
    before = resident_mib()
    many += [run(MANY, 32) for _ in range(50)]
    report = {
        "latency_ratio": round(hidden.seconds / least, 3),
        "barrier_ratio": round(barrier.seconds / least, 3),
        "driver_share": round(min(p.driver_seconds / p.seconds for p in many), 4),
        "phase_seconds": round(many[0].seconds, 1),
        "growth_mib": round(resident_mib() - before, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
