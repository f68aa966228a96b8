import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.agents.turn_form import Turn
from ppojob_trainer.controller.batch import shares
from ppojob_trainer.rollout.protocol import Finished, Request
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rpc.messages.agents import Acted, ToolAnswer, ToolCall, ToolsPeer
from ppojob_trainer.rpc.messages.rollout import Conversations, Generate, PromptTokens
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.workers.generation import Agent, Generation, GenerationProgress, Turns
from ppojob_trainer.workers.row_channels import GeneratedRows
from ppojob_trainer.workers.rows_in_flight import RowsInFlight

PROMPTS, SAMPLES, LIMIT = 2, 2, 24
MARK = 1_000
"""A prompt is one token, `MARK` and its number; a response counts from 0."""


class CountingEngine:
    """Draws a token a step for as many rows as fit: the place of each in its row.

    `length` says how long the row of a prompt and a request is. A turn ends at each multiple of
    `turn`, if that is not 0, and a row by its limit then.
    """

    def __init__(self, length, room: int, turn: int = 0) -> None:
        self._turn = turn
        self.policy_version = 0
        self._length, self._room = length, room
        self._rows: dict[str, tuple[Request, list[int]]] = {}
        self._aborted: list[Finished] = []

    def submit(self, request: Request) -> None:
        assert request.request_id not in self._rows
        self._rows[request.request_id] = request, []

    def step(self) -> list[Finished]:
        ended, self._aborted = self._aborted, []
        for request, drawn in list(self._rows.values())[: self._room]:
            number, *before = request.prompt
            drawn.append(len(before) + len(drawn))
            if drawn[-1] + 1 >= self._length(number - MARK, request.request_id):
                ended.append(self._ended(request.request_id, "length" if self._turn else "stop"))
            elif self._turn and drawn[-1] % self._turn == self._turn - 1:
                ended.append(self._ended(request.request_id, "stop"))
        return ended

    def abort(self, request_id: str) -> None:
        if request_id in self._rows:
            self._aborted.append(self._ended(request_id, "abort"))

    def has_work(self) -> bool:
        return bool(self._rows or self._aborted)

    def reset_cache(self) -> None:
        assert not self.has_work()

    def _ended(self, request_id: str, reason: str) -> Finished:
        tokens = tuple(self._rows.pop(request_id)[1])
        logprobs = tuple(-1.0 for _ in tokens)
        return Finished(request_id, tokens, logprobs, reason, self.policy_version)


class Calls:
    """A form of conversations whose every turn calls a tool, whose answer counts on."""

    images = None

    def parse(self, written) -> Turn:
        return Turn((ToolCall("count", str(written[-1])),))

    def encode_answers(self, written, calls, texts, held) -> list[int]:
        return [int(texts[0]) + 1]


class Tools:
    """Answers what it is asked by what it was asked; nothing twice."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, int, int]] = set()

    def start(self, calls):
        for one in calls:
            asked = (one.request.batch.step, one.request.row, one.request.turn)
            assert asked not in self._asked
            self._asked.add(asked)
        return calls

    def wait(self, calls) -> list[Acted]:
        return [Acted([ToolAnswer(one.arguments) for one in call.request.calls]) for call in calls]

    def cancel(self, calls) -> None:
        raise AssertionError("no phase fails here")


def request_of(step: int, ahead: int, total: int, run: tuple[int, int], given: int = 0) -> Generate:
    """The rows of a step of a run of the prompts of its batch, and those of the steps behind."""

    def alone(step: int) -> Generate:
        numbers = [step * PROMPTS + position for position in range(*run)]
        whole = [list(range(given))] if given else []
        prompts = [PromptTokens(number, [MARK + number], given=whole) for number in numbers]
        tools = Conversations([ToolsPeer("tools", 1)], rewinds=0)
        return Generate("train", step, run[0], prompts, SAMPLES, run, conversations=tools)

    later = range(step + 1, min(step + ahead, total + 1))
    return msgspec.structs.replace(alone(step), ahead=[alone(behind) for behind in later])


@dataclass(frozen=True)
class Case:
    """A job: how far it draws ahead, how long the rows are, and how many an engine has room for.

    Its engines are in the ranks that train, where they draw `beside` a step those behind it, or in
    pods of their own, where they draw while the step before trains.
    """

    ahead: int
    lengths: list[list[int]]  # (steps, rows)
    room: int
    beside: bool = False
    turn: int = 0  # tokens of a turn, behind which a tool is called; 0: no conversations
    delay: int = 0  # steps of the engine that a call may take
    given: int = 0  # tokens of the first response to each prompt, which is given; 0: none is

    def drawn(
        self, restarts: list[int], folder: Path, *, fails: bool = False
    ) -> list[list[Trajectory]]:
        """(steps, rows) of the job.

        Before each step engines are lost and so many others begin where those left off; 0: they
        live. If it `fails`, each step is saved and begun again behind its phase.
        """
        living, found = self._engines(restarts[0] or 1), []
        for step in range(1, len(self.lengths) + 1):
            if restarts[step - 1]:
                living = self._engines(restarts[step - 1], folder / str(step - 1))
            found.append(self._phase(step, living))
            if fails:
                for one in living:
                    one.state(step - 1)(folder / f"failed-{step}")
                living = self._engines(len(living), folder / f"failed-{step}")
                assert self._phase(step, living) == found[-1]
            for one in living:
                one.state(step)(folder / str(step))
        return found

    def whole(self, length: int) -> int:
        """How long a row becomes: the token that ends it is not one that was given."""
        return length + bool(self.turn and length > 1 and length % self.turn == 1)

    def _phase(self, step: int, living: list[RowsInFlight]) -> list[Trajectory]:
        rows, steps = [], self.ahead + self.beside
        for run, one in zip(shares(PROMPTS, len(living)), living, strict=True):
            one.generation.engine.policy_version = max(0, step - 2 + self.beside)
            (made,) = one.generate(request_of(step, steps, len(self.lengths), run, self.given))
            assert one.generation.progress == GenerationProgress(), "the phase is over"
            rows += made.trajectories
        return rows

    def _engines(self, number: int, folder: Path | None = None) -> list[RowsInFlight]:
        def length(prompt: int, request_id: str) -> int:
            row = prompt % PROMPTS * SAMPLES + int(request_id.split("/")[2]) % SAMPLES
            return self.lengths[prompt // PROMPTS - 1][row]

        spec = SimpleNamespace(
            seed=1,
            rollout=RolloutSpec(max_staleness=self.ahead),
            data=SimpleNamespace(max_response_tokens=LIMIT),
            phases_of_rows=self.ahead + self.beside,
        )
        chat = SimpleNamespace(eos_token_ids=(), set_time=lambda _: None)
        made = []
        agent = Agent(AgentSpec(), Calls(), (), (), ())
        turns = Turns({"": agent}, self.delay, fails=False) if self.turn else None
        for rank in range(number):
            engine = CountingEngine(length, self.room, self.turn)
            world = SimpleNamespace(rank=rank, leads_engine=True, engine=None)
            made.append(RowsInFlight(Generation(spec, engine, chat, Tools(), world, turns)))
        if folder is not None:
            names = [str(path.relative_to(folder)) for path in folder.glob("rollout/*/*")]
            for one in made:
                one.restore(folder, [entry(name) for name in names])
        return made


def entry(path: str) -> FileEntry:
    return FileEntry(path=path, size_bytes=0, sha256="", role="rollout", rank=0)


ROWS = st.lists(st.integers(1, LIMIT), min_size=PROMPTS * SAMPLES, max_size=PROMPTS * SAMPLES)
CASES = st.builds(
    Case,
    st.integers(2, 5),
    st.lists(ROWS, min_size=1, max_size=8),
    st.sampled_from([1, 3, 100]),
    st.booleans(),
    st.sampled_from([0, 3, 8]),
    st.sampled_from([0, 2]),
)


# Each is a job of several steps.
EXAMPLES = min(40, settings().max_examples)


@settings(max_examples=EXAMPLES)
@given(CASES, st.data())
def test_each_row_is_drawn_once_to_its_end_by_weights_that_are_new_enough(case, data) -> None:
    """Whenever engines are lost, and whatever their number is then."""
    steps = len(case.lengths)
    restarts = data.draw(st.lists(st.integers(0, 2), min_size=steps, max_size=steps))
    with tempfile.TemporaryDirectory() as folder:
        drawn = case.drawn(restarts, Path(folder))
    for step, (rows, lengths) in enumerate(zip(drawn, case.lengths, strict=True), start=1):
        tokens = [row.tokens for row in rows]
        assert tokens == [list(range(case.whole(length))) for length in lengths]
        assert {row.finish_reason for row in rows} == {"length" if case.turn else "stop"}
        for row in rows:
            versions = [s.policy_version for s in row.segments if s.is_trained]
            given = [s.tokens[0] % case.turn for s in row.segments if not s.is_trained]
            assert set(given) <= {0}, "an answer behind each turn, and nowhere else"
            assert versions == sorted(versions)
            assert 0 <= step - 1 - versions[-1] <= step - 1 - versions[0] <= case.ahead


@settings(max_examples=EXAMPLES)
@given(CASES, st.data())
def test_engines_that_were_lost_change_nothing(case, data) -> None:
    steps, number = len(case.lengths), data.draw(st.integers(1, 2))
    lost = data.draw(st.lists(st.booleans(), min_size=steps, max_size=steps))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        undisturbed = case.drawn([number] + [0] * (steps - 1), Path(one))
        restarts = [number if is_lost else 0 for is_lost in lost]
        fails = data.draw(st.booleans())
        again = case.drawn([number, *restarts[1:]], Path(other), fails=fails)
        assert again == undisturbed


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_rounds_are_drawn_as_steps_of_their_numbers(taken, ahead, data) -> None:
    """Also of a step that fails at one of its rounds, and draws all of them again."""
    total, room = sum(taken), data.draw(st.sampled_from([1, 3, 100]))
    case = Case(ahead, data.draw(st.lists(ROWS, min_size=total, max_size=total)), room, beside=True)
    rounds = [(step, one) for step, count in enumerate(taken, 1) for one in range(count)]
    (plain,), (engine,) = case._engines(1), case._engines(1)
    expected = []
    for number, (step, _) in enumerate(rounds, 1):
        plain.generation.engine.policy_version = step - 1
        expected += plain.generate(request_of(number, ahead + 1, total, (0, PROMPTS)))

    def drawn(of_steps: set[int]) -> list[GeneratedRows]:
        made = []
        for number, (step, one) in enumerate(rounds, 1):
            if step in of_steps:
                request = request_of(number, ahead + 1, total, (0, PROMPTS))
                later = [msgspec.structs.replace(a, number=a.step, step=0) for a in request.ahead]
                engine.generation.engine.policy_version = step - 1
                changes = {"step": step, "round": one, "number": number, "ahead": later}
                made += engine.generate(msgspec.structs.replace(request, **changes))
        return made

    with tempfile.TemporaryDirectory() as folder:
        failed = data.draw(st.integers(1, len(taken)))
        found = drawn(set(range(1, failed)))
        before = drawn({failed})
        engine.state(failed - 1)(Path(folder))
        (engine,) = case._engines(1, Path(folder))
        again = drawn({failed})
        engine.state(failed)(Path(folder) / "behind")
        (engine,) = case._engines(1, Path(folder) / "behind")
        assert again == before
        assert found + again + drawn(set(range(failed + 1, len(taken) + 1))) == expected


@pytest.mark.parametrize(
    ("ahead", "beside", "versions"), [(3, False, (4, 5, 6)), (2, True, (5, 6, 7))]
)
def test_a_long_row_costs_a_phase_its_share(tmp_path: Path, ahead, beside, versions) -> None:
    """One row of 24 among rows of 2: over three phases each draws 8 of it, not 24."""
    case = Case(ahead, [[2, 2, 2, 24]] * 8, 100, beside)
    first, *_, last = case.drawn([1] + [0] * 7, tmp_path)
    assert [len(segment.tokens) for segment in first[-1].segments] == [24]
    spans = [(segment.policy_version, len(segment.tokens)) for segment in last[-1].segments]
    assert spans == [(version, 8) for version in versions]


def test_a_given_row_costs_a_phase_nothing(tmp_path: Path) -> None:
    """However long it is, the others come as far as they would without it."""
    lengths = [[2, 2, 2, 24]] * 8
    plain = Case(3, [[2, *of_step[1:]] for of_step in lengths], 100)
    guided = Case(3, lengths, 100, given=LIMIT)
    restarts = [1] + [0] * 3 + [2] + [0] * 3
    alone = plain.drawn(restarts, tmp_path / "alone")
    for ours, theirs in zip(guided.drawn(restarts, tmp_path / "guided"), alone, strict=True):
        assert [row.given.count(True) for row in ours] == [LIMIT, 0, LIMIT, 0]
        assert [ours[row] for row in (1, 3)] == [theirs[row] for row in (1, 3)]
