import json
import math
import random
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec
import pytest
import torch
from tiny_models import TWO_LAYERS, make_model

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSpec
from ppojob_trainer.agents.driver import Driver, ToolFailed
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.agents.turn_form import Turn
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.metrics.step_metrics import RowFigures
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Finished, RolloutError, SamplingParams, StopTexts
from ppojob_trainer.rollout.trajectory import Segment, Trajectory, turn_rewards
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rollout import Interaction
from ppojob_trainer.tools.wire import Conversation, Message, ModelRequest

VOCAB, ENDS, ROWS = 64, tuple(range(0, 64, 4)), 16
POOL = ThreadPoolExecutor(4)
AGENT = AgentSpec(max_parallel_calls=2)
TOKENS = 40


def engine() -> HuggingFaceEngine:
    no_tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = make_model(seed=0, vocab_size=VOCAB, **TWO_LAYERS, **no_tokens)
    return HuggingFaceEngine(model, max_model_tokens=64, max_sequences=64)


PROGRAM = Interaction("program", b'{"name": "critic"}', b'[{"role": "user", "content": "1 2"}]')
ASKS = InteractionSpec.model_validate(
    {"name": "program", "interface": "openai", "source": {"path": "a.py"}}
)
USER = Interaction("critic", b'{"name": "critic"}', b'[{"role": "user", "content": "1 2"}]')


def rows(
    user: Interaction | None = None,
    form: type["Form"] | None = None,
    tokens: int = TOKENS,
    temperature: float = 1.0,
    **more,
) -> list[Episode]:
    """Rows of a job whose agent says more."""
    drawn, own = SamplingParams(temperature, 1.0, -1, 1, ENDS), (form or Form)()
    agent = AGENT.model_copy(update={"interactions": (ASKS,), **more})

    def row(n: int) -> Episode:
        prompt = (1, 2, n % VOCAB)
        seed = lambda turn: 1000 * turn + n  # noqa: E731
        return Episode(f"{n}", prompt, drawn, seed, agent, tokens, own, user, place=f"r{n}")

    return [row(n) for n in range(ROWS)]


USERS = [(None, False), (USER, False), (USER, True)]
REFUSED = "refused"


class Form:
    """Two calls where a turn ends with a multiple of sixteen, a reply where it is one of eight."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        if tokens[-1] % 8:
            return Turn()
        if tokens[-1] % 16:
            return Turn(reply=f"{tokens[-1]}")
        return Turn(tuple(ToolCall("sum", str(sum(tokens) + more)) for more in range(2)))

    pictures = None

    def encode_answers(
        self, _: Sequence[int], calls: Sequence[ToolCall], answers: Sequence[str], __: object
    ) -> list[int]:
        assert len(calls) == len(answers)
        return [5, *(int(answer) % VOCAB for answer in answers), 6]

    def encode_reply(self, _: Sequence[int], reply: str) -> list[int]:
        return [7, int(reply), 9]

    def decode_turn(self, written: Sequence[int]) -> str:
        return " ".join(map(str, written))

    def encode_user_message(self, _: Sequence[int], text: str) -> list[int]:
        return [11, int(text) % VOCAB, 13]

    def assistant_message(
        self, written: Sequence[int], tools: Sequence[Message], _: int, __: int
    ) -> Message:
        assert not tools
        return {"role": "assistant", "content": self.decode_turn(written)}

    def encode_request(self, written: Sequence[int], asked: ModelRequest) -> list[int]:
        if not asked.begins_context:
            return [
                token
                for one in asked.messages
                for token in self.encode_user_message(written, one["content"])
            ]
        return self.encode_context(asked.messages, ())

    def encode_context(self, messages: Sequence[dict[str, str]], _: Sequence[str]) -> list[int]:
        if any(one["content"] == REFUSED for one in messages):
            raise BadChatTemplate("tokenizer: got it: no; another")
        return [17, *(int(one["content"]) % VOCAB for one in messages), 19]


class Eager(Form):
    """Each turn is replied to."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        return Turn(reply=f"{tokens[-1]}")


class Silent(Form):
    """No turn wants anything."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        return Turn()


SUM = ToolSpec.model_validate(
    {
        "name": "sum",
        "description": "d",
        "parameters": {"type": "object"},
        "source": {"path": "/sums.py", "function": "Sums.sum"},
    }
)


@dataclass
class Workers:
    """Tools that take their time, each call its own.

    Attributes:
        seconds: at most so many a call, drawn by `seed`.
        refused: numbers of rows whose calls fail.
        begins: whether the user begins new contexts.
    """

    seconds: float = 0.0
    seed: int = 0
    refused: frozenset[int] = frozenset()
    begins: bool = False
    started: list[tuple[int, int]] = field(default_factory=list)
    asked: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    given_up: int = 0
    acted: dict[int, list[ToolCall]] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random, self._lock = random.Random(self.seed), threading.Lock()

    def start(
        self,
        number: int,
        turn: int,
        calls: Sequence[ToolCall],
        _: None,
        before: Sequence[ToolCall],
    ) -> Future[list[ToolAnswer]]:
        self.started.append((number, turn))
        if before:
            assert list(before) == self.acted[number]
        self.acted[number] = [*before, *calls]
        return POOL.submit(self._act, number, calls)

    def wait(self, begun: Future[list[ToolAnswer]]) -> list[ToolAnswer]:
        return begun.result()

    def cancel(self, begun: Future[list[ToolAnswer]]) -> None:
        self.given_up += 1

    def end_row(self, number: int, _: int, before: Sequence[ToolCall]) -> Future[list[ToolAnswer]]:
        """Rows that called have a score."""
        self.ended.append(number)
        failure = "raised" if number in self.refused else ""
        return POOL.submit(lambda: [ToolAnswer("", len(before), failure)] if before else [])

    def _act(self, number: int, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        with self._lock:
            seconds = self._random.uniform(0.0, self.seconds)
        time.sleep(seconds)
        failure = "raised" if number in self.refused else ""
        if calls[0].name == "program":
            return [self._ask(msgspec.json.decode(calls[0].arguments, type=Conversation))]
        if calls[0].to_user:
            return [self._criticise(calls[0], failure)]
        return [ToolAnswer(call.arguments, 0.5, failure, seconds) for call in calls]

    def _ask(self, heard: Conversation) -> ToolAnswer:
        """A program that asks with the prompt first, or in a context of its own."""
        opens, said = not heard.user_turns, sum(one.completion_tokens for one in heard.model_turns)
        said += sum(int(word) for one in heard.messages for word in str(one["content"]).split())
        if not opens and said % 6 == 0:
            return ToolAnswer("", 0.75, ends=True)
        if opens and not self.begins:
            asked = ModelRequest([], begins_context=False)
        else:
            words, begins = {"role": "user", "content": f"{said}"}, self.begins and said % 2 == 1
            asked = ModelRequest([words], begins_context=begins, max_tokens=said % 4)
        return ToolAnswer("", asked=msgspec.json.encode(asked))

    def _criticise(self, turn: ToolCall, failure: str) -> ToolAnswer:
        """A user who hears all that was said, and is content with what can be divided by six."""
        assert (turn.name, json.loads(turn.created)) == ("critic", {"name": "critic"})
        heard = msgspec.json.decode(turn.arguments, type=Conversation)
        assert heard.messages[-1]["role"] == "assistant"
        said = sum(int(word) for one in heard.messages for word in str(one["content"]).split())
        before = tuple(one.start for one in heard.user_turns)
        self.asked.append((len(heard.messages), before))
        if self.begins and said % 3:
            first = heard.contexts()[-1][0]["content"].split()[0]
            words = [{"role": "user", "content": word} for word in (first, f"{said}")]
            return ToolAnswer("", said % 7 / 4, context=msgspec.json.encode(words))
        return ToolAnswer(f"{said}", said % 7 / 4, failure, ends=said % 6 == 0)


def run(
    tools: Workers, delay: float = 8, *, fails: bool = False, **more
) -> tuple[list[Trajectory], list[RowFigures]]:
    episodes = rows(**more)
    Driver(engine(), tools, delay, fails=fails).run(episodes)
    return [e.trajectory for e in episodes], [e.figures for e in episodes]


@pytest.mark.parametrize("delay", [0, 3, 8, math.inf])
def test_latency_changes_no_bit(delay: float) -> None:
    at_once = run(Workers(), delay)
    assert not any(trajectory.tool_seconds for trajectory in at_once[0])
    assert any(len(trajectory.segments) >= 5 for trajectory in at_once[0]), "no row of three turns"
    for seed in range(3):
        late = run(Workers(0.02, seed), delay)
        assert late == at_once
        for trajectory, figures in zip(*late, strict=True):
            assert (trajectory.tool_seconds > 0) == (figures.tool_calls > 0)


def test_what_is_trained_is_what_was_drawn_after_the_very_tokens_of_the_row() -> None:
    episodes = rows()
    model = engine()
    asked: dict[str, tuple[int, ...]] = {}
    drawn: dict[str, list[tuple[int, ...]]] = {}
    submit, step = model.submit, model.step

    def noted_step():
        finished = step()
        for done in finished:
            drawn.setdefault(done.request_id.partition("/")[0], []).append(done.tokens)
        return finished

    def noted_submit(request) -> None:
        asked[request.request_id] = request.prompt
        submit(request)

    model.step, model.submit = noted_step, noted_submit
    Driver(model, Workers(), 2).run(episodes)
    for episode in episodes:
        found = episode.trajectory
        trained = [segment.tokens for segment in found.segments if segment.is_trained]
        assert trained == drawn[episode.name]
        so_far: tuple[int, ...] = episode.prompt
        turn = 0
        for segment in found.segments:
            if segment.is_trained:
                assert asked[f"{episode.name}/{turn}" if turn else episode.name] == so_far
                turn += 1
                assert len(segment.logprobs) == len(segment.tokens)
            so_far += segment.tokens
        assert len(found.tokens) <= TOKENS


def test_log_probabilities_of_later_turns_are_those_of_a_forward_over_the_whole_row() -> None:
    found, _ = run(Workers())
    model = engine()._model
    for number, trajectory in enumerate(found):
        prompt = (1, 2, number % VOCAB)
        ids = torch.tensor([[*prompt, *trajectory.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        mask = torch.tensor(trajectory.mask)
        torch.testing.assert_close(
            torch.tensor(trajectory.logprobs)[mask], expected[mask], atol=1e-5, rtol=0
        )


def contexts(trajectory: Trajectory, prompt: tuple[int, ...]) -> list[list[Segment]]:
    """The segments of each context, the first with its prompt."""
    found = [[Segment(prompt)]]
    for segment in trajectory.segments:
        if segment.begins_context:
            found.append([])
        found[-1].append(segment)
    return found


def test_a_context_is_drawn_as_if_it_were_all_there_is() -> None:
    episodes = rows(user=USER)
    Driver(engine(), Workers(begins=True), 8).run(episodes)
    model, several = engine()._model, 0
    for number, episode in enumerate(episodes):
        found, figures = episode.trajectory, episode.figures
        each = contexts(found, (1, 2, number % VOCAB))
        several += len(each) > 2
        assert figures.contexts == len(each)
        assert sum(found.context_starts) == len(each) - 1
        for segments in each:
            ids = torch.tensor([[token for one in segments for token in one.tokens]])
            mask = torch.tensor([one.is_trained for one in segments for _ in one.tokens])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1]
            said = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            told = torch.tensor([x for one in segments if one.is_trained for x in one.logprobs])
            torch.testing.assert_close(told, said[mask[1:]], atol=1e-5, rtol=0)
    assert several > 2, "too few rows of three contexts"


def test_a_context_that_does_not_fit_or_is_refused_ends_the_row() -> None:
    def answered(words: str, tokens: int = TOKENS) -> Episode:
        (one,) = rows(user=USER, tokens=tokens)[:1]
        one.add_response(Finished(one.name, (8, 9, 4), (0.0,) * 3, "stop", 0))
        context = msgspec.json.encode([{"role": "user", "content": word} for word in words.split()])
        call = ToolCall("critic", "", to_user=True)
        one.add_answers([call], [ToolAnswer("", context=context)])
        return one

    fits = answered("1 2 3", tokens=9)
    assert (fits.state.contexts, fits.request().sampling.max_tokens) == (2, 1)
    cut = answered("1 2 3 4", tokens=9)
    assert (cut.trajectory.finish_reason, cut.trajectory.tokens) == ("length", [8, 9, 4])
    refused = answered(REFUSED)
    assert refused.state.is_over
    assert refused.trajectory.finish_reason == "stop"
    assert (refused.figures.tool_failures, refused.figures.contexts) == (1, 1)


def test_experts_of_contexts_lie_where_their_tokens_do() -> None:
    """Two bytes a token; of the last token of a context, which no engine has read, none."""
    (one,) = rows(user=USER)[:1]
    one.add_response(Finished(one.name, (8, 9, 4), (0.0,) * 3, "stop", 0, bytes(range(2 * 5))))
    context = msgspec.json.encode([{"role": "user", "content": "7"}])
    one.add_answers([ToolCall("critic", "", to_user=True)], [ToolAnswer("", context=context)])
    assert one.request().prompt == (17, 7, 19)
    one.add_response(Finished(one.name, (4,), (0.0,), "stop", 0, bytes(range(50, 56))))
    assert one.trajectory.experts == bytes(range(10)) + bytes(2) + bytes(range(50, 56))


def test_rows_without_calls_are_those_of_a_single_turn() -> None:
    episodes, alone = rows(form=Silent), rows(form=Silent)
    told: list[int] = []
    Driver(engine(), Workers(), 8, is_enough=lambda _, ended: told.append(ended)).run(episodes)
    assert told == sorted(told)
    assert told[-1] == len(episodes)
    for one in alone:
        Driver(engine(), Workers(), math.inf).run([one])
    assert [e.trajectory.tokens for e in episodes] == [e.trajectory.tokens for e in alone]
    assert all(e.figures == RowFigures(2, 0, 0, [], 0) for e in episodes)


@pytest.mark.parametrize("delay", [0, 3, math.inf])
@pytest.mark.parametrize(
    ("form", "user", "begins"),
    [
        *((form, user, begins) for form in ("Form", "Eager", "Silent") for user, begins in USERS),
        *(("Form", PROGRAM, begins) for begins in (False, True)),
    ],
)
def test_rows_go_on_in_later_phases_as_if_in_one(form, user, begins, delay: float) -> None:
    """Greedy rows, which no seed decides, in phases of three steps, from states as of a file."""
    more = {"form": globals()[form], "user": user, "temperature": 0.0}
    whole = rows(**more, turn_tokens=5, tool_rewards="add")
    tools = Workers(begins=begins)
    Driver(engine(), tools, delay).run(whole)
    parts, model, phases = rows(**more, turn_tokens=5, tool_rewards="add"), engine(), 0
    while under_way := [one for one in parts if not one.state.is_over]:
        Driver(model, tools, delay, is_enough=lambda steps, _: steps == 3).run(under_way)
        for one in under_way:
            one.state = msgspec.convert(
                msgspec.json.decode(msgspec.json.encode(one.state)), RowState
            )
        phases += 1
    assert phases > 2 or form == "Silent"
    assert any(one.figures.contexts > 2 for one in whole) == (begins and form != "Eager")
    for one, other in zip(parts, whole, strict=True):
        found, expected = one.trajectory, other.trajectory
        assert (found.tokens, found.mask) == (expected.tokens, expected.mask)
        assert found.context_starts == expected.context_starts
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert turn_rewards([found]) == turn_rewards([expected])
        assert (found.finish_reason, one.figures) == (expected.finish_reason, other.figures)


@pytest.mark.parametrize("steps", [3, TOKENS])
def test_an_environment_has_the_calls_of_its_row_and_ends_with_it(steps: int) -> None:
    """`Workers` compares the earlier calls at each turn, and scores a row by their number."""
    episodes = rows(tools=(SUM,), temperature=0.0, tool_rewards="add")
    tools = Workers()
    while under_way := [one for one in episodes if not one.state.is_over]:
        # Workers know rows by their numbers, which would be others in a later phase.
        tools.acted = {n: list(one.state.acted) for n, one in enumerate(under_way)}
        Driver(engine(), tools, 3, is_enough=lambda now, _: now == steps).run(under_way)
    acted = [one.state.acted for one in episodes]
    assert len(tools.ended) == len(episodes)
    assert sum(map(bool, acted)) > 2
    assert max(map(len, acted)) > 2
    for one, calls in zip(episodes, acted, strict=True):
        assert one.figures.environment_score == (len(calls) or None)
        given = sum(segment.reward for segment in one.trajectory.segments)
        assert given == sum(one.figures.tool_rewards) + len(calls)
        assert not any(s.reward for s in one.trajectory.segments if not s.is_trained)
    plain = rows(temperature=0.0)
    Driver(engine(), Workers(), 3).run(plain)
    assert not any(one.state.acted for one in plain)


def test_a_row_that_its_last_reply_ends_is_scored_too() -> None:
    tools = Workers()
    episodes = rows(form=Eager, tools=(SUM,), tokens=12)
    Driver(engine(), tools, 3).run(episodes)
    assert sorted(tools.ended) == list(range(len(episodes)))


def test_a_score_that_fails_is_a_failed_call() -> None:
    class Unscored(Workers):
        def _act(self, number: int, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
            return [ToolAnswer("4")] * len(calls)

    refused = Unscored(refused=frozenset(range(99)))
    episodes = rows(tools=(SUM,), temperature=0.0)
    Driver(engine(), refused, 3).run(episodes)
    assert all(
        (one.figures.environment_score is None) == (one.figures.tool_failures == 0)
        for one in episodes
    )
    assert {one.figures.tool_failures for one in episodes} == {0, 1}
    with pytest.raises(ToolFailed, match=r"the score of its environment failed \(raised\)"):
        Driver(engine(), refused, 3, fails=True).run(rows(tools=(SUM,), temperature=0.0))


def test_texts_end_a_turn_that_two_phases_draw() -> None:
    """Also one that the first of them has begun."""
    texts = StopTexts(("abc",), lambda tokens: "".join(map(chr, tokens)))
    assert replace(texts, before=(ord("a"), ord("b"))).ends((ord("c"),))
    (one,) = rows()[:1]
    one.sampling = replace(one.sampling, stop_texts=texts)
    assert one.request().sampling.stop_texts == texts
    one.add_response(Finished(one.name, (ord("a"), ord("b")), (0.0, 0.0), "abort", 0))
    assert one.request().sampling.stop_texts.ends((ord("c"),))
    assert not one.request().sampling.stop_texts.ends((ord("b"),))


@pytest.mark.parametrize(
    ("limit", "most", "turns"),
    [("max_assistant_turns", 1, 1), ("max_assistant_turns", 2, 2), ("max_user_turns", 1, 2)],
)
def test_limits_of_turns(limit: str, most: int, turns: int) -> None:
    trajectories, _ = run(Workers(), **{limit: most})
    drawn = [sum(s.is_trained for s in t.segments) for t in trajectories]
    given = [len(t.segments) - n for t, n in zip(trajectories, drawn, strict=True)]
    assert (max(drawn), max(given)) == (turns, turns - 1)


def test_a_turn_that_ran_into_its_limit_makes_no_call() -> None:
    tools = Workers()
    trajectories, _ = run(tools, turn_tokens=1, max_parallel_calls=1)
    reasons = {t.finish_reason for t in trajectories}
    assert reasons == {"stop", "length"}
    for trajectory in trajectories:
        given = sum(not segment.is_trained for segment in trajectory.segments)
        assert len(trajectory.segments) == 2 * given + 1
        assert trajectory.segments[-1].is_trained


def test_a_turn_that_was_cut_may_be_answered_as_any_other() -> None:
    limits = {"turn_tokens": 1, "max_assistant_turns": 3}
    for cut_turns, turns in (("end", {1}), ("go_on", {3})):
        episodes = rows(form=Eager, cut_turns=cut_turns, **limits)
        Driver(engine(), Workers(), 8).run(episodes)
        cut = [one.trajectory for one in episodes if one.trajectory.tokens[0] not in ENDS]
        assert {sum(s.is_trained for s in trajectory.segments) for trajectory in cut} == turns
        assert {len(s.tokens) for t in cut for s in t.segments if s.is_trained} == {1}


def test_an_answer_that_does_not_fit_ends_the_row() -> None:
    trajectories, _ = run(Workers(), tokens=12)
    assert all(len(t.tokens) <= 12 for t in trajectories)
    ended = [t for t in trajectories if t.finish_reason == "length" and t.tokens[-1] % 8 == 0]
    assert ended, "no row ended by its answer"
    assert all(t.segments[-1].is_trained for t in ended)


def test_failures_are_told_masked_or_end_the_job() -> None:
    refused = frozenset({n for n, t in enumerate(run(Workers())[0]) if len(t.segments) > 1})
    first = min(refused)
    told, figures = run(Workers(refused=frozenset({first})))
    assert any(s.is_trained for s in told[first].segments)
    assert figures[first].tool_failures > 0
    masked, _ = run(Workers(refused=frozenset({first})), tool_failure="mask")
    assert masked[first].tokens == told[first].tokens
    assert not any(masked[first].mask)
    assert masked[:first] + masked[first + 1 :] == told[:first] + told[first + 1 :]
    tools = Workers(refused=refused)
    with pytest.raises(ToolFailed) as failure:
        run(tools, fails=True)
    words = r'got fail: turn 1 of r(\d+): a call of "sum" failed \(raised\): \d+'
    found = re.fullmatch(f"spec.agent.toolFailure: {words}", str(failure.value))
    assert found
    assert int(found[1]) in refused


def test_a_phase_that_fails_leaves_an_idle_engine_and_no_call() -> None:
    model, tools = engine(), Workers()

    class Broken(Form):
        def encode_answers(self, *_: object) -> list[int]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Driver(model, tools, 4).run(rows(form=Broken))
    assert not model.has_work()
    assert tools.given_up > 0
    Driver(model, Workers(), 4).run(rows())
    model.submit(rows()[0].request())
    with pytest.raises(RolloutError, match="still holds requests"):
        Driver(model, Workers(), 4).run(rows())


@pytest.mark.timeout(60)
def test_an_engine_that_loses_a_row_is_not_waited_for() -> None:
    model = engine()
    step = model.step
    model.step = lambda: [one for one in step() if one.request_id.partition("/")[0] != "3"]
    with pytest.raises(RolloutError, match="the engine lost 1 requests, first '3'"):
        Driver(model, Workers(), 4).run(rows())


@pytest.mark.parametrize("user", [None, USER])
def test_rewards_are_told_and_where_it_is_asked_for_on_their_turn(user):
    told, figures = run(Workers(), user=user)
    added, _ = run(Workers(), user=user, tool_rewards="add")
    assert not any(segment.reward for trajectory in told for segment in trajectory.segments)
    for trajectory, other, own in zip(added, told, figures, strict=True):
        assert trajectory.tokens == other.tokens
        rewards = [segment.reward for segment in trajectory.segments if segment.is_trained]
        assert sum(rewards) == sum(own.tool_rewards) + sum(own.turn_scores or [])
        assert user or set(rewards) <= {0.0, 1.0}
    assert any(own.tool_rewards for own in figures)
    assert user is None or any(sum(own.turn_scores) for own in figures)


@pytest.mark.parametrize("delay", [0, 8, math.inf])
def test_a_user_answers_where_no_tool_is_called_and_its_latency_changes_no_bit(delay: float):
    at_once = run(Workers(), delay, user=USER)
    for seed in range(2):
        assert run(Workers(0.02, seed), delay, user=USER) == at_once
    trajectories, figures = at_once
    alone, of_nobody = run(Workers(), delay)
    assert all(own.turn_scores is None for own in of_nobody)
    assert max(len(own.turn_scores) for own in figures) > 2
    for trajectory, own, other in zip(trajectories, figures, alone, strict=True):
        assert trajectory.tokens[: len(other.tokens)] == other.tokens
        spoken = [s for s in trajectory.segments if s.tokens[0] == 11 and not s.is_trained]
        assert len(own.turn_scores) - len(spoken) in (0, 1), "the last words of a user are left out"
        assert own.num_turns >= 2 * len(spoken) + 2
        assert b"turn_scores" in trajectory.figures
        assert trajectory.segments[-1].is_trained


def test_a_user_hears_all_that_was_said_and_when_it_was_asked_before():
    tools = Workers()
    run(tools, 0, user=USER)
    assert all(length > (asked[-1] if asked else 1) for length, asked in tools.asked)
    assert {len(asked) for _, asked in tools.asked} >= {0, 1, 2}
    assert any(length > 2 and not asked for length, asked in tools.asked), "none behind a tool"


def test_a_user_that_fails_is_told_masked_or_ends_the_job():
    refused = frozenset(range(ROWS))
    _, figures = run(Workers(refused=refused), user=USER)
    assert sum(own.tool_failures for own in figures) >= sum(len(o.turn_scores) for o in figures) > 0
    masked, figures = run(Workers(refused=refused), user=USER, tool_failure="mask")
    for trajectory, own in zip(masked, figures, strict=True):
        assert any(trajectory.mask) == (own.tool_failures == 0)
    with pytest.raises(ToolFailed, match=r"a call of \"critic\" failed \(raised\)"):
        run(Workers(refused=refused), fails=True, user=USER)


def test_limits_end_a_row_before_its_user_is_asked():
    tools = Workers()
    _, figures = run(tools, max_assistant_turns=1, user=USER)
    assert tools.asked == []
    assert all(own.turn_scores == [] for own in figures)
    _, figures = run(tools, max_user_turns=1, user=USER)
    assert max(len(own.turn_scores) for own in figures) == 1


def test_rows_of_several_agents_share_a_batch():
    users, forms, turns = (None, USER, USER), (Form, Silent), (None, 1)
    mixed = [
        rows(users[n % 3], forms[n % 2], max_assistant_turns=turns[n % 2])[n] for n in range(ROWS)
    ]
    Driver(engine(), Workers(0.02), 4).run(mixed)
    for n, episode in enumerate(mixed):
        assert episode.figures.num_turns == 2 or n % 2 == 0
        assert (episode.figures.turn_scores is None) == (n % 3 == 0)
    assert max(episode.figures.tool_calls for episode in mixed) > 0
