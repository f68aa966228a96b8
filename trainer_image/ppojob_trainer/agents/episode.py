"""Episode: the state machine of a multi-turn row, without engine, tools or clock.

The policy's tokens are kept as generated and never rendered again; the tokens between its turns
come from the chat template's `delta`. A row ends by verl's rule
(`experimental/agent_loop/tool_agent_loop.py`): by a turn without a call that no user simulator
answers, by the user simulator, by a limit of turns or tokens, or when an answer would not fit. A
row of a job without an agent is a single turn.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.agents.turn_form import ChatForm, Turn
from ppojob_trainer.data.media.images import (
    LaterImage,
    is_image,
    packed,
    unpacked,
    with_hashed_parts,
)
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.metrics.step_metrics import RowFigures
from ppojob_trainer.rollout.protocol import Finished, Request, SamplingParams
from ppojob_trainer.rollout.structured_output import GrammarError, json_grammar
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.agents import (
    SeenImage,
    ToolAnswer,
    ToolCall,
    reached_environment,
)
from ppojob_trainer.rpc.messages.rollout import Interaction
from ppojob_trainer.tools.wire import Conversation, Message, ModelRequest, ModelTurn

_LOG: Final = logging.getLogger(__name__)
_messages: Final = msgspec.json.Decoder(list[Message]).decode
_model_request: Final = msgspec.json.Decoder(ModelRequest).decode
_SAMPLING: Final = {
    "messages": (),
    "openai": ("temperature", "top_p"),
    "agent_loop": ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
}
"""Settings of the job that requests may repeat, by the interface of the user."""


@dataclass
class Episode:
    """One row."""

    name: str  # unique among the rows of a generation phase; begins the ids of its requests
    prompt: tuple[int, ...]
    sampling: SamplingParams  # `max_tokens` is set turn by turn
    # The seed of a request, by its number from 0 among those that generated tokens.
    seed_of: Callable[[int], int]
    agent: AgentSpec  # limits of turns and calls, and the handling of failures and rewards
    response_tokens: int  # limit of generated and given tokens together
    # Parses its turns, and formats the tokens between them; None: it is a single turn.
    form: ChatForm | None
    # Answers the turns that call no tool; None: such a turn ends the row.
    user: Interaction | None = None
    place: str = ""  # name for people: step, prompt and sample
    images: bytes = b""  # those of the prompt, packed by `data.images.packed`
    tools: Sequence[str] = ()
    # Its progress; a row that an earlier phase began continues from that state.
    state: RowState = field(default_factory=RowState)

    def __post_init__(self) -> None:
        if self.state.conversation is None and self.user is not None:
            prompt, drawn = _messages(self.user.prompt), self.sampling
            if self._interface == "openai" and self._form.images is not None:
                files = [file for file in unpacked(self.images) if is_image(file)]
                prompt = with_hashed_parts(prompt, files)
            names = _SAMPLING[self._interface]
            sampling = {name: getattr(drawn, name) for name in names}
            self.state.conversation = Conversation(prompt, len(prompt), sampling=sampling)
            if self._is_agent_loop:
                self.state.conversation.ids = list(self.prompt)

    def opening(self) -> Turn:
        """Return what the row waits for before the first turn: a program's first request."""
        if not self._is_program or self.state.answered:
            return Turn()
        self._conversation.began = self._form.chat.began if self._is_agent_loop else 0.0
        self.state.is_waiting = True
        return self._user_call()

    def request(self) -> Request:
        """Return the engine request for the next turn of the model, or the rest of one."""
        state, begun = self.state, self.state.written
        left = self.response_tokens - self._tokens
        spoken = state.conversation.user_turns[-1:] if state.conversation else []
        for most in (self.agent.turn_tokens, *(one.max_tokens for one in spoken)):
            left = min(left, most - len(begun)) if most else left
        sampling = replace(self.sampling, max_tokens=left)
        if stops := tuple(text for one in spoken for text in one.stop):
            decode = partial(self._form.chat.decode, skip_special_tokens=False)
            sampling = sampling.with_stop_texts(stops, decode)
        for one in spoken:
            if one.json_schema:
                grammar = json_grammar(one.json_schema, self._form.chat)
                sampling = replace(sampling, grammar=grammar)
        if begun and sampling.stop_texts is not None:
            stop_texts = replace(sampling.stop_texts, before=begun)
            sampling = replace(sampling, stop_texts=stop_texts)
        if begun and sampling.grammar is not None:
            sampling = replace(sampling, grammar=replace(sampling.grammar, before=begun))
        before = self.prompt if state.contexts == 1 else ()
        begin, shown = self._shown_images
        read = state.segments[state.context :]
        return Request(
            request_id=f"{self.name}/{state.turns}" if state.turns else self.name,
            prompt=(*before, *(token for segment in read for token in segment.tokens)),
            sampling=sampling,
            seed=self.seed_of(sum(segment.is_trained for segment in state.segments)),
            images=self._images,
            later=tuple(len(before) + one.start - begin for one in shown),
        )

    def seen_by(self, calls: Sequence[ToolCall]) -> list[SeenImage] | None:
        """Return the images that go with calls; None if they cannot show it any.

        Tools get those of its context so far, a program those of the prompt.
        """
        form, is_asked = self._form.images, self._interface == "openai"
        if form is None or (calls[0].to_user and not is_asked):
            return None
        shown = self.images if is_asked else self._images
        files = [file for file in unpacked(shown) if is_image(file)]
        return [SeenImage(file, *form.size_of(file)) for file in files]

    @property
    def _shown_images(self) -> tuple[int, list[LaterImage]]:
        """Return where the context begins in the response, and its images after a prompt."""
        begin = _tokens(self.state.segments[: self.state.context])
        return begin, [one for one in self.state.shown if one.start >= begin]

    @property
    def _images(self) -> bytes:
        """Return all images of its context."""
        of_prompt = self.images if self.state.contexts == 1 else b""
        files = [one.file for one in self._shown_images[1]]
        return packed([*unpacked(of_prompt), *files]) if files else of_prompt

    def add_response(self, response: Finished) -> Turn:
        """Store the engine's response; returns what the turn waits for, if anything.

        Nothing if the row is over, or if the engine was stopped: then the row continues with the
        rest of the turn.
        """
        state, agent = self.state, self.agent
        state.finish_reason = response.finish_reason
        state.experts = response.experts
        if response.tokens:
            state.segments.append(
                Segment(response.tokens, response.logprobs, response.policy_version)
            )
        if state.experts and not state.experts_before and state.contexts > 1:
            # A program has begun a context after a prompt that no engine has read.
            of_token = len(state.experts) // max(1, _tokens(state.segments[state.context :]) - 1)
            state.experts_before = bytes(of_token * len(self.prompt))
        if not state.is_over:
            return Turn()
        state.turns += 1
        goes_on = agent.cut_turns == "go_on" or self._is_program
        whole = ("stop", "length") if goes_on else ("stop",)
        if self.form is None or response.finish_reason not in whole:
            return Turn()
        # An agent loop ends by itself at a limit, with a score, or it makes its row end.
        if self._is_at_limit and not self._is_agent_loop:
            return Turn()
        if state.of_user and state.of_user[-1].ends:  # a program without a request
            return Turn()
        wanted = self._wanted(state.written)
        state.is_waiting = bool(wanted.calls or wanted.reply)
        return wanted

    @property
    def _is_at_limit(self) -> bool:
        """Whether the row has no further turn of the model."""
        return (
            self._tokens >= self.response_tokens
            or self.state.turns >= (self.agent.max_assistant_turns or math.inf)
            or self._replies >= (self.agent.max_user_turns or math.inf)
        )

    def _wanted(self, written: Sequence[int]) -> Turn:
        """Return what a turn with an answer waits for."""
        if self._is_program:
            self._record_turn(written)
            return self._user_call()
        wanted = self._form.parse(written)
        wanted = replace(wanted, calls=wanted.calls[: self.agent.max_parallel_calls])
        if self.user is None:
            return wanted
        self._record("assistant", self._form.decode_turn(written))
        if wanted.calls or wanted.reply:
            return wanted
        return self._user_call()

    def _user_call(self) -> Turn:
        """Return a call to the user simulator."""
        assert self.user is not None, "the row has a user simulator"
        conversation = msgspec.json.encode(self.state.conversation).decode()
        return Turn((ToolCall(self.user.name, conversation, self.user.arguments, to_user=True),))

    def _record_turn(self, written: Sequence[int]) -> None:
        """Record the finished turn for the program."""
        state, conversation = self.state, self._conversation
        most = self.agent.max_parallel_calls
        message: Message = {"ids": list(written)}
        if not self._is_agent_loop:
            message = self._form.assistant_message(written, conversation.tools, state.turns, most)
            for stop in conversation.user_turns[-1].stop:
                message["content"] = message["content"].partition(stop)[0]
        is_whole = "tool_calls" in message and state.finish_reason == "stop"
        read = _tokens(state.segments[state.context : state.turn_began])
        read += len(self.prompt) if state.contexts == 1 else 0
        reason = "tool_calls" if is_whole else state.finish_reason
        conversation.model_turns.append(ModelTurn(reason, read, len(written)))
        conversation.messages.append(message)

    def add_answers(
        self, calls: Sequence[ToolCall], answers: Sequence[ToolAnswer]
    ) -> Sequence[ToolAnswer]:
        """Store the answers of its last turn's calls, or the user simulator's.

        The row is over if the user simulator ends the conversation, or if the answers would leave
        the model no token. Returns the answers as they count: a new context that the chat template
        refuses is a failure that ends the row.
        """
        self.state.is_waiting = False
        segments = self.state.segments
        if self.agent.tool_rewards == "add" and segments:
            reward = sum(answer.reward for answer in answers)
            segments[-1] = replace(segments[-1], reward=reward)
        if calls[0].to_user:
            of_program = bool(answers[0].asked)
            take = self._add_program_request if of_program else self._add_user_answer
            return [take(answers[0])]
        self.state.answers += map(_without_words, answers)
        self.state.acted += self._acted(calls, answers)
        texts = [answer.text for answer in answers]
        for text in texts:
            self._record("tool", text)
        held = [answer.images for answer in answers]
        given = self._form.encode_answers(self.state.written, calls, texts, held)
        self._append_given(given, [file for one in held for file in unpacked(one)])
        return answers

    def _acted(
        self, calls: Sequence[ToolCall], answers: Sequence[ToolAnswer]
    ) -> Iterator[ToolCall]:
        """Yield the calls that the row's environment has answered."""
        methods = self.agent.environments
        for call, answer in zip(calls, answers, strict=True):
            if call.name in methods and reached_environment(answer):
                yield call

    def add_score(self, answer: ToolAnswer) -> None:
        """Store the score of the environments, the reward of the answer, of a row that is over."""
        self.state.score = _without_words(answer)
        if self.agent.tool_rewards == "add":
            segments = self.state.segments
            last = max((n for n, one in enumerate(segments) if one.is_trained), default=None)
            if last is not None:
                reward = segments[last].reward + answer.reward
                segments[last] = replace(segments[last], reward=reward)

    def _add_user_answer(self, answer: ToolAnswer) -> ToolAnswer:
        """Store the user simulator's answer; its last message is not part of the row."""
        messages = _messages(answer.context) if answer.context else []
        context: list[int] = []
        try:
            context = self._form.encode_context(messages, self.tools) if messages else []
        except BadChatTemplate as refused:
            answer = self._refused(answer, f"a new context: {refused}")
        self.state.of_user.append(_without_words(answer))
        if answer.ends:
            self.state.answered += 1
            return answer
        conversation = self._conversation
        if messages:
            conversation.add_request(ModelRequest(messages, True))
            self._begin_context(context)
        else:
            conversation.add_request(ModelRequest([{"role": "user", "content": answer.text}]))
            self._append_given(self._form.encode_user_message(self.state.written, answer.text))
        return answer

    def _add_program_request(self, answer: ToolAnswer) -> ToolAnswer:
        """Store a program's request for the next turn."""
        state, conversation, request = self.state, self._conversation, _model_request(answer.asked)
        opens, wrong = not conversation.user_turns, ""
        if self._is_at_limit and not opens:
            return answer
        given: list[int] = []
        try:
            if self._is_agent_loop:
                given = [one for message in request.messages for one in message["ids"]]
            else:
                given = self._form.encode_request(state.written, request, answer.images)
            if request.json_schema:
                json_grammar(request.json_schema, self._form.chat).matcher().allowed(0)
        except (BadChatTemplate, GrammarError) as refused:
            wrong = str(refused)
        if opens and len(given) >= self.response_tokens:
            wrong = f"got {len(given)} tokens; fewer than data.maxResponseTokens"
        if wrong:
            answer = self._refused(answer, f"a request of the program: {wrong}")
        if wrong or not opens:
            state.of_user.append(_without_words(answer))
        if wrong:
            state.answered += 1
            return answer
        conversation.add_request(request)
        add = self._begin_context if request.begins_context else self._append_given
        add(given, unpacked(answer.images))
        return answer

    def _refused(self, answer: ToolAnswer, why: str) -> ToolAnswer:
        """Return the answer of a user whose messages cannot be formatted."""
        _LOG.warning("%s: %s", self.place, why)
        return msgspec.structs.replace(answer, text=why, failure="raised", ends=True)

    def _begin_context(self, given: Sequence[int], shown: Sequence[bytes] = ()) -> None:
        """Begin a new context with these tokens alone."""
        state = self.state
        read = _tokens(state.segments[state.context :])
        read += len(self.prompt) if state.contexts == 1 else 0
        if self._append_given(given, shown, begins_context=True):
            # The engine has generated the last token without reading it, so it has no experts for
            # it.
            of_token = len(state.experts) // max(1, read - 1)
            state.experts_before += state.experts + bytes(of_token)
            state.experts = b""

    def add_reply(self, reply: str) -> None:
        """Store the reply to a turn without the required call; as `answer`."""
        self.state.is_waiting = False
        self._record("user", reply)
        self._append_given(self._form.encode_reply(self.state.written, reply))

    def _append_given(
        self, given: Sequence[int], shown: Sequence[bytes] = (), *, begins_context: bool = False
    ) -> bool:
        """Append given tokens; return whether a token is left for the model to continue."""
        state, tokens = self.state, self._tokens
        if tokens + len(given) >= self.response_tokens:
            state.finish_reason = "length"
            return False
        if shown:
            form = self._form.images
            assert form is not None, "the model takes images of tools"
            places = [tokens + start for start, *_ in form.places(given, packed(shown))]
            state.shown += map(LaterImage, places, shown)
        if given:
            state.segments.append(Segment(tuple(given), begins_context=begins_context))
        state.turn_began = len(state.segments)
        state.answered += 1
        state.finish_reason = "abort"
        return True

    @property
    def figures(self) -> RowFigures:
        """Return the figures of the row."""
        state = self.state
        scores = [state.score] if state.score else []
        answers = (*state.answers, *state.of_user, *scores)
        ends = any(one.ends for one in state.of_user)  # which is no reply of an agent loop
        return RowFigures(
            num_turns=state.turns + self._replies + 1 - (self._is_agent_loop and ends),
            tool_calls=len(state.answers),
            tool_failures=sum(bool(one.failure) for one in answers),
            tool_rewards=[answer.reward for answer in state.answers],
            given_tokens=sum(len(s.tokens) for s in state.segments if not s.is_trained),
            turn_scores=[answer.reward for answer in state.of_user] if self.user else None,
            environment_score=state.score.reward if state.score else self._score_of_loop,
            # A prompt that a program did not use counts as none.
            contexts=state.contexts - any(one.begins_context for one in state.segments[:1]),
        )

    @property
    def _score_of_loop(self) -> float | None:
        """Return the score of an agent loop, 0 if it has not ended by itself; None for others."""
        ends = [one.reward for one in self.state.of_user if one.ends]
        return (ends or [0.0])[-1] if self._is_agent_loop else None

    @property
    def trajectory(self) -> Trajectory:
        """Return the row, once it is over."""
        state = self.state
        segments = state.kept_segments
        if self.agent.tool_failure == "mask" and self.figures.tool_failures:
            segments = tuple(
                Segment(one.tokens, begins_context=one.begins_context) for one in segments
            )
        return Trajectory(
            segments,
            state.finish_reason,
            b"" if self.form is None else msgspec.json.encode(self.figures),
            tool_seconds=sum(answer.seconds for answer in state.answers),
            experts=state.experts_before + state.experts,
            images=tuple(state.shown),
        )

    @property
    def _interface(self) -> str:
        """Return the interface of its user."""
        name = self.user and self.user.name
        return next(
            (one.interface for one in self.agent.interactions if one.name == name), "messages"
        )

    @property
    def _is_program(self) -> bool:
        """Whether its user asks the model itself, as programs and agent loops do."""
        return self._interface != "messages"

    @property
    def _is_agent_loop(self) -> bool:
        return self._interface == "agent_loop"

    @property
    def _replies(self) -> int:
        """Return how many of its turns were answered; a program's first request answers none."""
        return self.state.answered - (self._is_program and self.state.answered > 0)

    @property
    def _conversation(self) -> Conversation:
        assert self.state.conversation is not None, "the row has a user simulator"
        return self.state.conversation

    @property
    def _form(self) -> ChatForm:
        assert self.form is not None, "rows of one turn are not answered"
        return self.form

    @property
    def _tokens(self) -> int:
        return _tokens(self.state.segments)

    def _record(self, role: str, text: str) -> None:
        """Record a message for the user simulator, if there is one."""
        if self.state.conversation is not None:
            self.state.conversation.messages.append({"role": role, "content": text})


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(len(segment.tokens) for segment in segments)


def _without_words(answer: ToolAnswer) -> ToolAnswer:
    return msgspec.structs.replace(answer, text="", images=b"", context=b"", asked=b"")
