"""Rows of several turns for the tests of the driver, whose tools, users and programs are made up.

Tokens are numbers, and what they say is made of those numbers: so a test can tell what a row has
heard from its tokens alone.
"""

import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from tiny_models import TWO_LAYERS, make_model

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec
from ppojob_trainer.agents.driver import Driver
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.turn_form import Turn
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.metrics.step_metrics import RowFigures
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import SamplingParams
from ppojob_trainer.rollout.trajectory import Trajectory
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


REFUSED = "refused"


class Form:
    """Two calls where a turn ends with a multiple of sixteen, a reply where it is one of eight."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        if tokens[-1] % 8:
            return Turn()
        if tokens[-1] % 16:
            return Turn(reply=f"{tokens[-1]}")
        return Turn(tuple(ToolCall("sum", str(sum(tokens) + more)) for more in range(2)))

    images = None

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

    def encode_request(self, written: Sequence[int], asked: ModelRequest, _: bytes) -> list[int]:
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
