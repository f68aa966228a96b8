"""How a rank makes the rows of a request: one response each, or conversations with tools."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec, ValidationSamplingSpec
from ppojob_trainer.agents.driver import Driver
from ppojob_trainer.agents.episode import Episode, Limits
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.remote_tools import RemoteTools
from ppojob_trainer.agents.turn_form import ChatForm, TurnForm
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.rollout.protocol import (
    Request,
    RolloutEngine,
    SamplingParams,
    StopTexts,
    generate,
)
from ppojob_trainer.rollout.seeds import Purpose, sample_seed
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rpc.client import Caller, Peer
from ppojob_trainer.rpc.messages.rollout import Conversations, Generate, PromptTokens
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.tools.schemas import tool_schemas

TRAIN = "train"
GREEDY = "greedy"
"""Purpose of greedy responses that training is compared with; they are not trained on."""


@dataclass(frozen=True)
class Turns:
    """What rows of several turns need.

    Attributes:
        form: reads turns, and writes what stands between them.
        limits: where a row ends.
        delay: engine steps that calls may take; infinity: until no row runs.
        fails: whether a failed call fails the job.
        has_users: whether a user answers turns that call no tool.
        stop_token_ids: end a turn, besides the model's own end tokens.
        stop_texts: do so, too.
    """

    form: TurnForm
    limits: Limits
    delay: float
    fails: bool
    has_users: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop_texts: StopTexts | None = None


@dataclass(frozen=True)
class _Row:
    """A row that is asked for."""

    batch: Generate
    number: int  # in the whole batch
    prompt: PromptTokens
    sampling: SamplingParams
    seed_of: Callable[[int], int]  # of a turn

    @property
    def name(self) -> str:
        prefix = f"{GREEDY}/" if self.batch.purpose == GREEDY else ""
        position, sample = divmod(self.number, self.batch.samples)
        return f"{prefix}{position}/{sample}"

    @property
    def place(self) -> str:
        """What people are told of it; numbers as in the files of rows."""
        step = f"{self.batch.purpose} step {self.batch.step}"
        return f"{step}, prompt {self.prompt.prompt}, sample {self.number % self.batch.samples}"


@dataclass(frozen=True)
class Generation:
    """Makes rows.

    Attributes:
        spec: the job.
        engine: draws.
        chat: knows what ends a response.
        caller: calls tools.
        turns: of rows that are conversations; None where each row is one response.
    """

    spec: PPOJobSpec
    engine: RolloutEngine
    chat: ChatTokenizer
    caller: Caller
    turns: Turns | None = None

    def run(self, batches: list[Generate]) -> list[list[Trajectory]]:
        """One generation phase.

        Args:
            batches: what is made together.

        Returns:
            The rows of each, prompt after prompt.
        """
        rows = [row for batch in batches for row in self._rows(batch)]
        made = iter(self._single(rows) if self.turns is None else self._talk(rows, self.turns))
        sizes = [len(batch.prompts) * batch.samples for batch in batches]
        return [list(itertools.islice(made, size)) for size in sizes]

    def _single(self, rows: list[_Row]) -> list[Trajectory]:
        requests = [
            Request(row.name, tuple(row.prompt.tokens), row.sampling, row.seed_of(0))
            for row in rows
        ]
        return [Trajectory.of(response) for response in generate(self.engine, requests)]

    def _talk(self, rows: list[_Row], turns: Turns) -> list[Trajectory]:
        told = next(
            (row.batch.conversations for row in rows if row.batch.conversations),
            Conversations([], rewinds=0),
        )
        tools = RemoteTools(
            caller=self.caller,
            tools=[Peer("tools rank", at.host, at.port, "tools") for at in told.tools],
            retrievers=[
                Peer("retriever rank", at.host, at.port, "retriever") for at in told.retrievers
            ],
            rows=[(batch_of(row.batch), row.number) for row in rows],
            prompts=[row.prompt for row in rows],
        )
        episodes = [
            Episode(
                row.name,
                tuple(row.prompt.tokens),
                row.sampling,
                row.seed_of,
                turns.limits,
                row.prompt.interaction if turns.has_users else None,
                row.place,
            )
            for row in rows
        ]
        driver = Driver(self.engine, tools, turns.form, turns.delay, turns.fails)
        driver.run(episodes)
        return [episode.trajectory for episode in episodes]

    def _rows(self, batch: Generate) -> Iterator[_Row]:
        sampling = self._sampling(batch.purpose)
        purpose: Purpose = "train" if batch.purpose == TRAIN else "validation"
        for position, prompt in enumerate(batch.prompts, start=batch.first):
            for sample in range(batch.samples):
                # A prompt that comes again in a later round is not answered the same.
                drawn = batch.round * batch.samples + sample

                def seed_of(turn: int, prompt: int = prompt.prompt, drawn: int = drawn) -> int:
                    return sample_seed(self.spec.seed, batch.step, prompt, drawn, purpose, turn)

                yield _Row(batch, position * batch.samples + sample, prompt, sampling, seed_of)

    def _sampling(self, purpose: str) -> SamplingParams:
        rollout = self.spec.rollout
        chosen: RolloutSpec | ValidationSamplingSpec = rollout.validation
        if purpose == TRAIN:
            chosen = rollout
        elif purpose == GREEDY:
            chosen = ValidationSamplingSpec()
        of_turns = self.turns.stop_token_ids if self.turns else ()
        ends = (*self.chat.eos_token_ids, *rollout.stop_token_ids, *of_turns)
        return SamplingParams(
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            max_tokens=self.spec.data.max_response_tokens,
            stop_token_ids=tuple(dict.fromkeys(ends)),
            stop_texts=self.turns.stop_texts if self.turns else None,
        )


def batch_of(batch: Generate) -> BatchName:
    """The name of the batch that a request is of."""
    rewinds = batch.conversations.rewinds if batch.conversations else 0
    return BatchName(rewinds, batch.step, batch.purpose, batch.round)


def open_turns(spec: PPOJobSpec, chat: ChatTokenizer) -> Turns | None:
    """What the rows of a job need, where they are conversations."""
    agent = spec.agent
    if agent is None:
        return None
    form = FORMATS[agent.format]
    schemas = tool_schemas(agent)
    template = TurnTemplate(chat, spec.data.apply_chat_template_kwargs)

    def with_marks(tokens: Sequence[int]) -> str:
        return chat.decode(tokens, skip_special_tokens=False)

    return Turns(
        form=ChatForm(chat, template, form, schemas),
        limits=Limits.of(agent, spec.data.max_response_tokens),
        delay=math.inf if agent.tool_steps < 0 else agent.tool_steps,
        fails=agent.tool_failure == "fail",
        has_users=bool(agent.interactions),
        stop_token_ids=tuple(
            id_ for id_, token in chat.added_tokens.items() if token.content in form.stop_tokens
        ),
        stop_texts=StopTexts(form.stop_texts, with_marks) if form.stop_texts else None,
    )
