"""Generation on one rank: rows with one response each, or conversations with tools."""

import itertools
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec, ValidationSamplingSpec
from ppojob_trainer.agents.driver import Driver
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.named import agents_of
from ppojob_trainer.agents.remote_tools import RemoteTools
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.agents.turn_form import ChatForm
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_forms import all_take_images
from ppojob_trainer.data.media.images import packed_later
from ppojob_trainer.data.turn_check import shows_images
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.errors import GenerationAborted
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.rollout.factory import build_engine
from ppojob_trainer.rollout.protocol import RolloutEngine, SamplingParams, StopTexts
from ppojob_trainer.rollout.sampling import Purpose, sample_seed
from ppojob_trainer.rollout.structured_output import Grammar, grammar_of
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.row_metadata import RowMetadata, tokens_by_version
from ppojob_trainer.rpc.client import Caller, Peer
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.rollout import (
    OF_DATA,
    AskRowsDrawn,
    Conversations,
    Generate,
    Generated,
    PromptTokens,
    RowsDrawn,
)
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.tools.schemas import tool_schemas
from ppojob_trainer.workers.row_channels import GeneratedRows

TRAIN = "train"
VALIDATION = "validation"
GREEDY = "greedy"
"""Purpose of greedy baseline responses; they are not trained on."""
_SINGLE_TURN: Final = AgentSpec()


@dataclass(frozen=True)
class Agent:
    """Settings of the rows of an agent."""

    spec: AgentSpec  # its own `spec.agent`
    form: ChatForm  # parses turns, and formats the tokens between them
    tools: tuple[str, ...]  # names of allowed tools; empty for all
    stop_token_ids: tuple[int, ...]  # of a turn, besides the model's own end tokens
    stop_texts: tuple[str, ...]  # of a turn


@dataclass(frozen=True)
class Turns:
    """Settings of multi-turn rows."""

    agents: Mapping[str, Agent]  # by the agent's name in the rows
    delay: float  # engine steps that calls may take; infinity: until no row runs
    fails: bool  # whether a failed call fails the job


@dataclass(frozen=True)
class Row:
    """A requested row."""

    batch: Generate
    number: int  # in the whole batch
    prompt: PromptTokens
    sampling: SamplingParams
    seed_of: Callable[[int], int]  # the seed of an engine request, by the number of earlier ones
    given: Sequence[int] = ()  # the response, if the data has it; empty if it is generated

    def initial_state(self) -> RowState:
        """Return the initial state; a row with a given response has ended."""
        if not self.given:
            return RowState()
        ends = len(self.given) < self.sampling.max_tokens
        ends = ends or self.given[-1] in self.sampling.stop_token_ids
        whole = Segment(tuple(self.given), policy_version=OF_DATA)
        return RowState([whole], "stop" if ends else "length")

    @property
    def name(self) -> str:
        prefix = f"{GREEDY}/" if self.batch.purpose == GREEDY else ""
        position, sample = divmod(self.number, self.batch.samples)
        return f"{prefix}{position}/{sample}"

    @property
    def place(self) -> str:
        """Return the name of the row in messages, with the numbers of row files."""
        unit = "round" if self.batch.number else "step"
        batch = f"{self.batch.purpose} {unit} {self.batch.number or self.batch.step}"
        return f"{batch}, prompt {self.prompt.prompt}, sample {self.number % self.batch.samples}"


@dataclass
class GenerationProgress:
    """Numbers of requested and finished rows of a generation phase, polled by the controller."""

    requested: int = 0
    ended: int = 0
    is_aborted: bool = False  # whether the controller aborted the phase

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        self.requested, self.is_aborted = rows, False
        try:
            yield
        finally:
            self.requested = self.ended = 0

    def report(self, request: AskRowsDrawn) -> RowsDrawn:
        self.is_aborted |= request.aborts
        return RowsDrawn(self.ended, self.requested)


@dataclass(frozen=True)
class Generation:
    """Generates rows."""

    spec: PPOJobSpec  # the job's spec
    engine: RolloutEngine  # generates; a plain `RolloutEngine` if engines have pods of their own
    chat: ChatTokenizer  # the policy's tokenizer
    caller: Caller  # calls the ranks of other roles
    world: World  # the role's world
    turns: Turns | None = None  # None if each row is one response
    grammar: Grammar | None = None  # of structured output
    progress: GenerationProgress = field(default_factory=GenerationProgress)

    def run(self, batches: list[Generate]) -> list[GeneratedRows]:
        """Run one generation phase; return the rows of each batch that this rank keeps.

        Raises:
            GenerationAborted: the controller aborted it; validations only.
        """
        is_validation = batches[0].purpose == VALIDATION
        rows = [row for batch in batches for row in self.rows(batch)]
        episodes = [self.episode(row, row.name) for row in rows]

        def count(_: int, ended: int) -> bool:
            self.progress.ended = ended
            return is_validation and self.progress.is_aborted

        with self.progress.of(sum(not episode.state.is_over for episode in episodes)):
            self.drive(batches[0].step, rows, episodes, count)
        if not all(episode.state.is_over for episode in episodes):
            raise GenerationAborted("the validation was aborted")
        made = iter(episodes)
        sizes = [len(batch.prompts) * batch.samples for batch in batches]
        return [
            kept_rows(batch, itertools.islice(made, size))
            for batch, size in zip(batches, sizes, strict=True)
        ]

    def episode(self, row: Row, name: str, state: RowState | None = None) -> Episode:
        """Return the episode of a row from its start or a state; names are unique in the phase."""
        turns, prompt = self.turns, row.prompt
        agent = turns.agents[prompt.agent] if turns else None
        return Episode(
            name,
            tuple(prompt.tokens),
            row.sampling,
            row.seed_of,
            agent.spec if agent else _SINGLE_TURN,
            self.spec.data.max_response_tokens,
            agent.form if agent else None,
            prompt.interaction if agent and agent.spec.interactions else None,
            row.place,
            prompt.images,
            prompt.tools,
            row.initial_state() if state is None else state,
        )

    def drive(
        self,
        step: int,
        rows: Sequence[Row],
        episodes: Sequence[Episode],
        is_enough: Callable[[int, int], bool],
    ) -> None:
        """Generate the unfinished rows to their ends, or until `is_enough`; see `Driver`.

        `step` is that of the phase; rows may belong to later steps.
        """
        pairs = zip(rows, episodes, strict=True)
        rows = [row for row, episode in pairs if not episode.state.is_over]
        episodes = [episode for episode in episodes if not episode.state.is_over]
        turns = self.turns
        if turns is None:
            Driver(self.engine, None, is_enough=is_enough).run(episodes)
            return
        conversations = next(
            (row.batch.conversations for row in rows if row.batch.conversations),
            Conversations([], rewinds=0),
        )
        self.chat.set_time(conversations.began)
        tools = self._tools(conversations, step, rows, turns)
        Driver(self.engine, tools, turns.delay, turns.fails, is_enough).run(episodes)

    def _tools(
        self, conversations: Conversations, step: int, rows: Sequence[Row], turns: Turns
    ) -> RemoteTools:
        environments = [agent.spec.environments for agent in turns.agents.values()]
        return RemoteTools(
            caller=self.caller,
            tools=[Peer("tools rank", at.host, at.port, "tools") for at in conversations.tools],
            retrievers=[
                Peer("retriever rank", at.host, at.port, "retriever")
                for at in conversations.retrievers
            ],
            step=step,
            rows=[(batch_name(row.batch), row.number) for row in rows],
            prompts=[_with_tools(row.prompt, turns.agents[row.prompt.agent]) for row in rows],
            environments=dict(ChainMap(*environments)),
            attempt=conversations.attempt,
            world=self.world,
        )

    def rows(self, batch: Generate) -> Iterator[Row]:
        """Yield the rows of a request that this rank's engine generates, in order."""
        names = {prompt.agent for prompt in batch.prompts}
        sampling = {name: self._sampling(batch.purpose, name) for name in names}
        purpose: Purpose = "train" if batch.purpose == TRAIN else "validation"
        for position, prompt in enumerate(batch.prompts, start=batch.first):
            for sample in range(batch.samples):
                # A prompt that is repeated in a later round gets other samples.
                drawn = batch.round * batch.samples + sample

                def seed_of(turn: int, prompt: int = prompt.prompt, drawn: int = drawn) -> int:
                    return sample_seed(self.spec.seed, batch.step, prompt, drawn, purpose, turn)

                number = position * batch.samples + sample
                own = prompt.given[sample] if sample < len(prompt.given) else ()
                yield Row(batch, number, prompt, sampling[prompt.agent], seed_of, own)

    def _sampling(self, purpose: str, name: str) -> SamplingParams:
        rollout = self.spec.rollout
        chosen: RolloutSpec | ValidationSamplingSpec = rollout.validation
        if purpose == TRAIN:
            chosen = rollout
        elif purpose == GREEDY:
            chosen = ValidationSamplingSpec()
        agent = self.turns.agents[name] if self.turns else None
        of_turns = agent.stop_token_ids if agent else ()
        own = () if rollout.ignore_eos else self.chat.eos_token_ids
        ends = (*own, *rollout.stop_token_ids, *of_turns)
        texts = (*rollout.stop_strings, *(agent.stop_texts if agent else ()))
        return SamplingParams(
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            min_p=chosen.min_p,
            repetition_penalty=chosen.repetition_penalty,
            max_tokens=self.spec.data.max_response_tokens,
            stop_token_ids=tuple(dict.fromkeys(ends)),
            stop_texts=StopTexts(texts, self._decode) if texts else None,
            grammar=self.grammar,
        )

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.chat.decode(tokens, skip_special_tokens=False)


def kept_rows(batch: Generate, episodes: Iterable[Episode]) -> GeneratedRows:
    """Return the rows of a batch that this rank keeps."""
    whole = [episode.trajectory for episode in episodes]
    return GeneratedRows(batch.first, batch.prompts, batch.samples, whole).within(batch.kept)


def _with_tools(prompt: PromptTokens, agent: Agent) -> PromptTokens:
    """Add to a prompt the names of the tools that its row may call, unless it may call all."""
    if prompt.tools or not agent.tools:
        return prompt
    return msgspec.structs.replace(prompt, tools=list(agent.tools))


def batch_name(batch: Generate) -> BatchName:
    """Return the name of a request's batch."""
    rewinds = batch.conversations.rewinds if batch.conversations else 0
    return BatchName(rewinds, batch.step, batch.purpose, batch.round)


def batches_of(request: Generate) -> list[Generate]:
    """Return the batches of a request: its own, and that of greedy responses."""
    greedy = msgspec.structs.replace(request, purpose=GREEDY, samples=1)
    return [request, greedy] if request.greedy else [request]


def generation_result(made: list[GeneratedRows], counts: dict[str, int] | None = None) -> Generated:
    """Build the answer to the controller: metadata of the batches, and engine counters."""
    first, *greedy = [list(map(_metadata, batch.trajectories)) for batch in made]
    return Generated(first, greedy[0] if greedy else [], counts or {})


def _metadata(row: Trajectory) -> RowMetadata:
    return RowMetadata(
        len(row.tokens),
        row.finish_reason == "length",
        row.figures,
        row.tool_seconds if row.figures else None,
        tokens_by_version((one.policy_version, len(one.tokens)) for one in row.segments),
        len(packed_later(row.images)),
    )


@contextmanager
def open_generation(
    environment: PodEnvironment, world: World, keys: KeyRing
) -> Iterator[Generation]:
    """Open the engine, if there is one, and the tokenizer of a rank, within the block.

    Call it after the role's world is open and before a model is loaded: vLLM takes the default
    group for its own world, and measures free memory.
    """
    spec, topology = environment.config.spec, environment.config.topology
    model, role = spec.model, topology.role(environment.role)
    generates = role.role == topology.generating.role and not spec.algorithm.given
    with ExitStack() as stack:
        engine = RolloutEngine()
        if generates:
            engine = build_engine(
                spec.rollout,
                Path(model.path),
                device=role.device,
                shares_device=role.role == "actorRollout",
                overrides=config_changes(model.path, model),
                lora=spec.adapters_of_engines,
                records_experts=spec.algorithm.router_replay == "rollout",
            )
        stack.callback(engine.close)
        folder = model.tokenizer_path or model.path
        chat = ChatTokenizer(model.path, folder, model.chat_template, began=0.0)  # requests set it
        stack.enter_context(chat)
        caller = Caller(keys, default_deadline_seconds=spec.timeouts.stage_seconds)
        stack.callback(caller.close)
        turns = _turns(spec, chat) if generates else None
        form = spec.rollout.structured_output if generates else None
        grammar = None if form is None else grammar_of(form, chat)
        yield Generation(spec, engine, chat, caller, world, turns, grammar)


def _turns(spec: PPOJobSpec, chat: ChatTokenizer) -> Turns | None:
    """Return the settings of a job's conversations, if it has any."""
    agent = spec.agent
    if agent is None:
        return None
    template = TurnTemplate(chat, spec.data.apply_chat_template_kwargs)
    sees = all_take_images(spec)
    return Turns(
        agents={
            name: _agent(own, template, len(agent.tools), sees)
            for name, own in agents_of(agent).items()
        },
        delay=math.inf if agent.tool_steps < 0 else agent.tool_steps,
        fails=agent.tool_failure == "fail",
    )


def _agent(agent: AgentSpec, template: TurnTemplate, tools_of_job: int, sees: bool) -> Agent:
    form, chat, schemas = FORMATS[agent.format], template.chat, tool_schemas(agent)
    asks = any(one.interface == "openai" for one in agent.interactions)
    roles = [role for role, is_asked in (("user", asks), ("tool", bool(schemas))) if is_asked]
    sees = sees and bool(roles) and form.answer is None
    sees = sees and all(shows_images(template, schemas, role) for role in roles)
    image_form = chat.images if sees and isinstance(chat.images, ImageForm) else None
    return Agent(
        spec=agent,
        form=ChatForm(chat, template, form, schemas, image_form),
        tools=tuple(tool.name for tool in agent.tools) if len(agent.tools) < tools_of_job else (),
        stop_token_ids=tuple(
            id_ for id_, token in chat.added_tokens.items() if token.content in form.stop_tokens
        ),
        stop_texts=form.stop_texts,
    )
