"""Rollout stages of training and validation: generation, scoring and recording of batches.

Responses stay on the ranks that own them; only lengths and scores come to the controller. Batches
on the row tape are loaded instead of generated.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import msgspec

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import Engines
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.row_tape import RowTape, key_of
from ppojob_trainer.controller.scoring import Scoring
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.rpc.client import Call, Caller, Peer, Pending
from ppojob_trainer.rpc.messages.agents import ToolsPeer
from ppojob_trainer.rpc.messages.rollout import (
    AskRowsDrawn,
    Conversations,
    Generate,
    Generated,
    LoadRows,
    RowsDrawn,
)
from ppojob_trainer.rpc.messages.rows import WriteRows
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.rpc.methods import GENERATE, LOAD_ROWS, ROWS_DRAWN, WRITE_ROWS
from ppojob_trainer.rpc.wire import CHUNK_BYTES, RequestId, portions

StepBatches = tuple[Batch, Batch | None]
"""Batches of a step's prompts: sampled rows, and greedy rows if a baseline needs them."""

Draw = Callable[[int], list[PromptRow]]
"""Returns the next prompts in the order of the job."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step."""

    batch: Batch
    greedy: Batch | None = None  # greedy responses to the same prompts, if a baseline needs them
    is_recorded: bool = False  # whether they are scored and on disk already
    metrics: dict[str, float] = field(default_factory=dict)
    rounds: Sequence[Batch] = ()  # the generation rounds of dynamic sampling


@dataclass(frozen=True)
class RolloutStages:
    """Generates, scores and records batches."""

    roles: Roles
    engines: Engines
    scoring: Scoring
    tape: RowTape
    chunk_bytes: int = CHUNK_BYTES  # limit of one request of `write_rows`
    has_turns: bool = False  # whether rows are multi-turn
    loops: Collection[str] = ()  # names of agents that are agent loops
    given: int = 0  # maximum number of responses per prompt that come from the data
    began: float = 0.0  # start of the run, in unix seconds
    tools: RoleGroup | None = None  # role that runs tool calls; None without tools
    retriever: RoleGroup | None = None  # answers `search` calls; None if the tools role does
    # called during generation with the numbers of finished rows and of all rows
    on_progress: Callable[[int, int], None] = lambda *_: None
    aborts: Callable[[], bool] = lambda: False  # whether to abort a validation in progress

    def validate(self, dataset: PromptDataset, samples: int, step: int) -> Batch:
        """Generate, score and record responses to all validation prompts, after a step."""
        prompts = dataset.rows(range(len(dataset)))
        batch = Batch("validation", step, prompts, samples, owners=len(self.roles.owner.ranks))
        self.generate(batch)
        self.score(batch)
        self.record(batch)
        return batch

    def generate(
        self,
        batch: Batch,
        greedy: Batch | None = None,
        timer: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        *,
        ahead: Sequence[StepBatches] = (),
        is_begun: bool = False,
    ) -> None:
        """Generate the rows of a batch on their owners, and set its metadata.

        `greedy` responses to the same prompts are generated with it, and `ahead`, batches of the
        next steps, as far as they get meanwhile. `is_begun`: standalone engines have begun these
        rows (`StandaloneEngines.begin`).
        """
        together = [batch] if greedy is None else [batch, greedy]
        with timer("gen"):
            if self._load_existing(together):
                return
        if not is_begun:
            with timer("update_weights"):
                is_validation = batch.purpose == "validation"
                self.engines.prepare(batch.step if is_validation else batch.step - 1)
        with timer("gen"):
            answers = self.run_engines(batch, greedy, ahead)
            batch.set_metadata(answers, greedy)
            self.engines.deliver(together)

    def run_engines(
        self, batch: Batch, greedy: Batch | None, ahead: Sequence[StepBatches]
    ) -> list[Generated]:
        """Have the engines generate rows, and wait.

        Raises:
            Interrupted: a validation was aborted.
        """
        requests, id_ = self.generate_requests(batch, greedy, ahead)
        engines = self.engines.group.ranks[:: self.engines.tensor]
        aborts = self.aborts if batch.purpose == "validation" else lambda: False
        with progress_poll(self.roles.caller, engines, self.on_progress, aborts) as poll:
            return self.roles.call(self.engines.group, GENERATE, requests, id_, meanwhile=poll)

    def _load_existing(self, batches: list[Batch]) -> bool:
        """Load rows that are on disk or at their owners; return whether there are any."""
        if not self.tape.is_replayed(batches[0]):
            return self.engines.recall(batches)
        for batch in batches:
            if self.tape.is_replayed(batch):
                self._load(batch)
        return True

    def generate_requests(
        self, batch: Batch, greedy: Batch | None, ahead: Sequence[StepBatches] = ()
    ) -> tuple[list[Generate], RequestId]:
        """Return the request to each engine rank, and the request id; `ahead` as in `generate`."""
        requests = self._requests(batch, greedy)
        later = [self._requests(*one) for one in ahead]
        requests = [
            msgspec.structs.replace(request, ahead=of_rank)
            for request, *of_rank in zip(requests, *later, strict=True)
        ]
        return requests, RequestId(0, batch.step, f"{batch.label}/generate")

    def _requests(self, batch: Batch, greedy: Batch | None) -> list[Generate]:
        return [
            Generate(
                purpose=batch.purpose,
                step=batch.step,
                first=first,
                prompts=batch.prompt_tokens(first, last, self.given, self.loops),
                samples=batch.samples,
                kept=kept,
                round=batch.round,
                greedy=greedy is not None,
                conversations=self._conversations(),
                number=batch.number,
            )
            for (first, last), kept in self.engines.runs(len(batch.prompts))
        ]

    def _conversations(self) -> Conversations | None:
        if not self.has_turns:
            return None

        def peers(group: RoleGroup | None) -> list[ToolsPeer]:
            return [ToolsPeer(rank.host, rank.port) for rank in group.ranks] if group else []

        tools, retrievers = peers(self.tools), peers(self.retriever)
        attempt = self.engines.group.attempt
        return Conversations(tools, self.roles.rewinds, retrievers, attempt, self.began)

    def _load(self, batch: Batch) -> None:
        """Set the metadata of rows on disk, and have the ranks load the rows of a training step."""
        self.tape.load_metadata(batch)
        if batch.purpose == "validation":
            return
        folder, parts = self.tape.location(batch)
        requests = [
            LoadRows(
                purpose=batch.purpose,
                folder=folder,
                parts=parts,
                first=first,
                last=last,
                prompts=batch.prompt_tokens(first, last),
                samples=batch.samples,
                round=batch.round,
            )
            for first, last in batch.shares
        ]
        id_ = RequestId(0, batch.step, f"{batch.label}/load_rows")
        self.roles.call(self.roles.owner, LOAD_ROWS, requests, id_)

    @contextmanager
    def start_scoring(self, batch: Batch) -> Iterator[Callable[[], None]]:
        """Start to score the rows; yield a function that waits and sets the scores."""
        if self.tape.has(batch):
            yield lambda: self.tape.load_metadata(batch)
        else:
            with self.scoring.start(batch) as finish:
                yield finish

    def score(self, batch: Batch) -> None:
        with self.start_scoring(batch) as finish:
            finish()

    def record(self, batch: Batch) -> None:
        """Write rows and scores to disk, if they are not there yet."""
        if not self.tape.has(batch):
            self.tape.record(batch, self.write_rows(batch, key_of(batch).folder))
        elif self.tape.recording is not None:
            self.tape.record(batch, self.tape.copy(batch))

    def write_rows(self, batch: Batch, folder: str, act: str = "write_rows") -> list[FileEntry]:
        """Have the owners write their rows as parts of a parquet folder; return the files.

        An owner writes several parts if its request would be too large. `act` is a part of the
        request id.
        """
        items, kinds = [batch.scored_prompts(*share) for share in batch.shares], batch.value_kinds()
        # The controller's attempt is in the id: after a restart the scores may differ.
        stage = f"{batch.label}/{act}/{self.roles.caller.attempt}"
        files = list[FileEntry]()
        for index, parts in enumerate(portions(items, self.chunk_bytes)):
            owners = [owner for owner, own in enumerate(parts) if own]
            requests = [
                WriteRows(
                    purpose=batch.purpose,
                    step=batch.step,
                    folder=folder,
                    part=len(items) * index + owner,
                    prompts=parts[owner],
                    value_kinds=kinds,
                    round=batch.round,
                )
                for owner in owners
            ]
            id_ = RequestId(0, batch.step, stage, index)
            answers = self.roles.call(self.roles.owner, WRITE_ROWS, requests, id_, ranks=owners)
            files += [file for answer in answers for file in answer.files]
        return files


@contextmanager
def progress_poll(
    caller: Caller,
    engines: Sequence[Peer],
    on_progress: Callable[[int, int], None],
    aborts: Callable[[], bool] = lambda: False,
    every_seconds: float = 2.0,
) -> Iterator[Callable[[], None]]:
    """Yield a function that polls the engines, by one rank of each, without blocking.

    `on_progress` gets the sums of finished rows and of all rows. If `aborts` returns True, the
    engines are told at once to abort, and repeatedly, since a rank may begin after it was told.
    """
    pending: Pending[RowsDrawn] | None = None
    next_at = time.monotonic() + every_seconds

    def poll() -> None:
        nonlocal pending, next_at
        if pending is None:
            is_aborted = aborts()
            if is_aborted or time.monotonic() >= next_at:
                request = AskRowsDrawn(is_aborted)
                pending = caller.start([Call(rank, ROWS_DRAWN, request) for rank in engines])
        elif pending.is_done:
            done, pending = pending, None
            next_at = time.monotonic() + every_seconds
            if done.refusal is None:  # a failed rank is reported by `Roles.watch`
                counts = done.answers
                on_progress(sum(one.ended for one in counts), sum(one.asked for one in counts))

    try:
        yield poll
    finally:
        if pending is not None:
            caller.cancel(pending)
