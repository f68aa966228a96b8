"""A row as it grows: a pure state machine of turns, without engine, tools or clock.

The policy's tokens are kept as they were drawn and never rendered again; what is put between them
comes from the chat template's `delta`. Where a row ends is verl's rule
(`experimental/agent_loop/tool_agent_loop.py`): by a turn without a call that no user answers, by a
user, by a limit of turns or tokens, or when an answer would not fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.turn_form import ChatForm, Turn
from ppojob_trainer.data.pictures import LaterPicture, packed, unpacked
from ppojob_trainer.metrics.step_metrics import RowFigures
from ppojob_trainer.rollout.protocol import Finished, FinishReason, Request, SamplingParams
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.agents import SeenPicture, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rollout import Interaction
from ppojob_trainer.tools.wire import Conversation, Message

_messages: Final = msgspec.json.Decoder(list[Message]).decode


@dataclass
class Episode:
    """One row.

    Attributes:
        name: unique among the rows of a generation phase; begins the ids of its requests.
        prompt: token ids.
        sampling: how tokens are drawn; `max_tokens` is set turn by turn.
        seed_of: the seed of a turn, by its number from 0.
        agent: its limits of turns and calls, and what becomes of failures and rewards.
        response_tokens: limit of what the model writes and is given, together.
        form: reads its turns, and writes what stands between them.
        user: answers the turns that call no tool; None: such a turn ends the row.
        place: what people are told of it: step, prompt and sample.
        pictures: those of the prompt, as `data.pictures.packed` has them.
    """

    name: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed_of: Callable[[int], int]
    agent: AgentSpec
    response_tokens: int
    form: ChatForm
    user: Interaction | None = None
    place: str = ""
    pictures: bytes = b""
    _segments: list[Segment] = field(default_factory=list)
    _tokens: int = 0
    _drawn: int = 0
    _answered: int = 0
    _answers: list[ToolAnswer] = field(default_factory=list)
    _of_user: list[ToolAnswer] = field(default_factory=list)
    _conversation: Conversation = field(init=False)
    _finish_reason: FinishReason = "stop"
    _experts: bytes = b""  # of the whole row up to the last turn
    _shown: list[LaterPicture] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._conversation = Conversation(_messages(self.user.prompt) if self.user else [])

    @property
    def turn(self) -> int:
        """How many answers it was given."""
        return self._answered

    def request(self) -> Request:
        """What the engine is asked for the next turn of the model."""
        left = self.response_tokens - self._tokens
        turn = left if self.agent.turn_tokens is None else min(left, self.agent.turn_tokens)
        given = [token for segment in self._segments for token in segment.tokens]
        files = [one.file for one in self._shown]
        return Request(
            request_id=f"{self.name}/{self._drawn}" if self._drawn else self.name,
            prompt=(*self.prompt, *given),
            sampling=replace(self.sampling, max_tokens=turn),
            seed=self.seed_of(self._drawn),
            pictures=packed([*unpacked(self.pictures), *files]) if files else self.pictures,
            later=tuple(len(self.prompt) + one.start for one in self._shown),
        )

    @property
    def seen(self) -> list[SeenPicture] | None:
        """The pictures that it has shown so far; None where tools cannot show it any."""
        if (form := self.form.pictures) is None:
            return None
        files = [*unpacked(self.pictures), *(one.file for one in self._shown)]
        return [SeenPicture(file, *form.sides(file)) for file in files]

    def take(self, response: Finished) -> Turn:
        """Take in a turn of the model; answers what it wants, nothing where the row is over."""
        self._drawn += 1
        self._finish_reason = response.finish_reason
        self._experts = response.experts
        if response.tokens:
            self._add(Segment(response.tokens, response.logprobs, response.policy_version))
        agent = self.agent
        whole = ("stop", "length") if agent.cut_turns == "go_on" else ("stop",)
        if response.finish_reason not in whole or self._tokens >= self.response_tokens:
            return Turn()
        if self._drawn >= (agent.max_assistant_turns or math.inf):
            return Turn()
        if self._answered >= (agent.max_user_turns or math.inf):
            return Turn()
        wanted = self.form.read(response.tokens)
        wanted = replace(wanted, calls=wanted.calls[: agent.max_parallel_calls])
        if self.user is None:
            return wanted
        self._tell("assistant", self.form.said(response.tokens))
        if wanted.calls or wanted.reply:
            return wanted
        heard = msgspec.json.encode(self._conversation).decode()
        self._conversation.asked.append(len(self._conversation.messages))
        return Turn((ToolCall(self.user.name, heard, self.user.arguments, to_user=True),))

    def answer(self, calls: Sequence[ToolCall], answers: Sequence[ToolAnswer]) -> bool:
        """Take in what the calls of its last turn gave, or what the user says to it.

        Returns:
            Whether the model goes on; it does not where the user ends the conversation, or the
            answers would leave it no token.
        """
        if self.agent.tool_rewards == "add":
            reward = sum(answer.reward for answer in answers)
            self._segments[-1] = replace(self._segments[-1], reward=reward)
        if calls[0].to_user:
            return self._answer_of_user(answers[0])
        self._answers += answers
        texts = [answer.text for answer in answers]
        for text in texts:
            self._tell("tool", text)
        held = [answer.pictures for answer in answers]
        given = self.form.answered(self._segments[-1].tokens, calls, texts, held)
        return self._goes_on(given, [file for one in held for file in unpacked(one)])

    def _answer_of_user(self, answer: ToolAnswer) -> bool:
        """The user has spoken; its last words, which nobody answers, are not part of the row."""
        self._of_user.append(answer)
        if answer.ends:
            self._answered += 1
            return False
        self._tell("user", answer.text)
        return self._goes_on(self.form.heard(self._segments[-1].tokens, answer.text))

    def reply(self, reply: str) -> bool:
        """Take in what the model is told where it called no tool; as `answer`."""
        self._tell("user", reply)
        return self._goes_on(self.form.replied(self._segments[-1].tokens, reply))

    def _goes_on(self, given: Sequence[int], shown: Sequence[bytes] = ()) -> bool:
        if self._tokens + len(given) >= self.response_tokens:
            self._finish_reason = "length"
            return False
        if shown:
            assert self.form.pictures is not None, "tools were told that they can show some"
            spans = self.form.pictures.spans(given, packed(shown))
            places = [self._tokens + start for start, _ in spans]
            self._shown += map(LaterPicture, places, shown)
        if given:
            self._add(Segment(tuple(given)))
        self._answered += 1
        return True

    @property
    def figures(self) -> RowFigures:
        """What it was."""
        return RowFigures(
            num_turns=self._drawn + self._answered + 1,
            tool_calls=len(self._answers),
            tool_failures=sum(bool(one.failure) for one in (*self._answers, *self._of_user)),
            tool_rewards=[answer.reward for answer in self._answers],
            given_tokens=sum(len(s.tokens) for s in self._segments if not s.is_trained),
            turn_scores=[answer.reward for answer in self._of_user] if self.user else None,
        )

    @property
    def trajectory(self) -> Trajectory:
        """The row, once it is over."""
        segments = tuple(self._segments)
        if self.agent.tool_failure == "mask" and self.figures.tool_failures:
            segments = tuple(Segment(segment.tokens) for segment in segments)
        return Trajectory(
            segments,
            self._finish_reason,
            msgspec.json.encode(self.figures),
            tool_seconds=sum(answer.seconds for answer in self._answers),
            experts=self._experts,
            pictures=tuple(self._shown),
        )

    def _tell(self, role: str, text: str) -> None:
        """Something is said that the user hears, where there is one."""
        if self.user is not None:
            self._conversation.messages.append({"role": role, "content": text})

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._tokens += len(segment.tokens)
