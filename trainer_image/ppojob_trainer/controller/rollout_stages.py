"""Generation and scoring: the stages that training and validation share.

The controller assigns the work; responses stay on the ranks that own them, and only lengths and
scores come here. Batches on the row tape are read from it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import msgspec

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import Engines
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.rollout_progress import RolloutProgressPoll
from ppojob_trainer.controller.row_tape import RowTape, batch_key
from ppojob_trainer.controller.scoring import Scoring
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.rpc.messages.agents import ToolsPeer
from ppojob_trainer.rpc.messages.rollout import Conversations, Generate, Generated, LoadRows
from ppojob_trainer.rpc.messages.rows import WriteRows
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.rpc.methods import GENERATE, LOAD_ROWS, WRITE_ROWS
from ppojob_trainer.rpc.wire import CHUNK_BYTES, RequestId, chunks, encode

Drawn = tuple[Batch, Batch | None]
"""Batches of a step's prompts: sampled rows, and greedy rows if a baseline reads them."""


@dataclass(frozen=True)
class RolloutStages:
    """Generates and scores batches.

    Attributes:
        actor: the role whose ranks own the rows.
        chunk_bytes: limit of one request to an owner that writes rows.
        has_turns: whether rows have several turns.
        given: responses to each prompt that come from the data, if it has them.
        began: start of the run, in unix seconds.
        tools: role that runs the tool calls of rows; None without tools.
        retriever: role that answers `search` calls; None if the tools role does.
        on_progress: callback with the number of generated rows, and of all.
    """

    roles: Roles
    actor: RoleGroup
    engines: Engines
    scoring: Scoring
    tape: RowTape
    chunk_bytes: int = CHUNK_BYTES
    has_turns: bool = False
    given: int = 0
    began: float = 0.0
    tools: RoleGroup | None = None
    retriever: RoleGroup | None = None
    on_progress: Callable[[int, int], None] = lambda *_: None

    def validate(self, dataset: PromptDataset, samples: int, step: int) -> Batch:
        """Generate, score and record responses to all held-out prompts, with a step's weights."""
        prompts = dataset.rows(range(len(dataset)))
        batch = Batch("validation", prompts, samples, owners=len(self.actor.ranks))
        self.generate(batch, step)
        self.score(batch, step)
        self.record(batch, step)
        return batch

    def generate(
        self,
        batch: Batch,
        step: int,
        greedy: Batch | None = None,
        timer: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        *,
        ahead: Sequence[Drawn] = (),
        is_begun: bool = False,
    ) -> None:
        """Generate the rows of a batch on their owners; fills in lengths.

        `greedy` are greedy responses to the same prompts, generated together; `ahead` are batches
        of the next steps, generated beside them as far as they get. `is_begun`: engines in pods of
        their own have already begun these rows (`begin`).
        """
        together = [batch] if greedy is None else [batch, greedy]
        with timer("gen"):
            if self._are_there(together, step):
                return
        if not is_begun:
            with timer("update_weights"):
                self.engines.prepare(step if batch.purpose == "validation" else step - 1)
        with timer("gen"):
            answers = self.ask(batch, step, greedy, ahead)
            batch.set_lengths(answers)
            if greedy is not None:
                of_greedy = [answer.greedy for answer in answers]
                greedy.set_lengths([answer for answer in of_greedy if answer is not None])
            self.engines.deliver(together, step)

    def ask(
        self, batch: Batch, step: int, greedy: Batch | None, ahead: Sequence[Drawn]
    ) -> list[Generated]:
        """Have the engines generate rows, and wait."""
        one_of_each = self.engines.group.ranks[:: self.engines.tensor]
        drawn = RolloutProgressPoll(self.roles.caller, one_of_each, self.on_progress)
        asked = self.generation(batch, step, greedy, ahead)
        with drawn.asked() as ask_drawn:
            return self.roles.call(self.engines.group, GENERATE, *asked, meanwhile=ask_drawn)

    def _are_there(self, batches: list[Batch], step: int) -> bool:
        """Whether the owners already have the rows; then their metadata is filled in."""
        if not self.tape.is_replayed(batches[0], step):
            return self.engines.recall(batches, step)
        for batch in batches:
            if self.tape.is_replayed(batch, step):
                self._load(batch, step)
        return True

    def generation(
        self, batch: Batch, step: int, greedy: Batch | None, ahead: Sequence[Drawn] = ()
    ) -> tuple[list[Generate], RequestId]:
        """Return the generation requests of a batch, and their id.

        `ahead` are the batches of the next steps, in order.
        """
        requests = self._requests(batch, step, greedy)
        later = [
            self._requests(one, behind, of_greedy)
            for behind, (one, of_greedy) in enumerate(ahead, step + 1)
        ]
        if later:
            requests = [
                msgspec.structs.replace(request, ahead=of_rank)
                for request, *of_rank in zip(requests, *later, strict=True)
            ]
        return requests, RequestId(0, step, f"{batch.label}/generate")

    def _requests(self, batch: Batch, step: int, greedy: Batch | None) -> list[Generate]:
        return [
            Generate(
                purpose=batch.purpose,
                step=step,
                first=first,
                prompts=batch.prompt_tokens(first, last, self.given),
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

        return Conversations(
            peers(self.tools),
            self.roles.rewinds,
            peers(self.retriever),
            self.engines.attempt,
            self.began,
        )

    def _load(self, batch: Batch, step: int) -> None:
        """Fill in the metadata of recorded rows; ranks load the rows of a training step."""
        self.tape.fill(batch, step)
        if batch.purpose == "validation":
            return
        folder, parts = self.tape.place(batch, step)
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
        id_ = RequestId(0, step, f"{batch.label}/load_rows")
        self.roles.call(self.actor, LOAD_ROWS, requests, id_)

    @contextmanager
    def start_scoring(self, batch: Batch, step: int) -> Iterator[Callable[[], None]]:
        """Begin to score the rows; the returned function waits and fills the scores in."""
        if self.tape.has(batch, step):
            yield lambda: self.tape.fill(batch, step)
        else:
            with self.scoring.begun(batch, step) as finish:
                yield finish

    def score(self, batch: Batch, step: int) -> None:
        """Score the rows, wait, and fill in the scores."""
        with self.start_scoring(batch, step) as finish:
            finish()

    def record(self, batch: Batch, step: int) -> None:
        """Record rows and scores on disk, unless they are there."""
        if not self.tape.has(batch, step):
            folder = batch_key(batch, step).folder
            self.tape.record(batch, step, self.write_rows(batch, step, folder))
        elif self.tape.recording is not None:
            self.tape.record(batch, step, self.tape.copy(batch, step))

    def write_rows(
        self, batch: Batch, step: int, folder: str, act: str = "write_rows"
    ) -> list[FileEntry]:
        """Have the owners write their rows as parts of a parquet folder, one part per owner.

        An owner whose rows exceed one request writes several. `act` names the purpose.
        """
        whole = WriteRows(
            purpose=batch.purpose,
            step=step,
            folder=folder,
            part=0,
            first=0,
            scores=batch.scores,
            data_sources=[prompt.data_source for prompt in batch.prompts],
            ground_truths=[msgspec.json.encode(prompt.ground_truth) for prompt in batch.prompts],
            extra_infos=[msgspec.json.encode(prompt.extra_info) for prompt in batch.prompts],
            extras=batch.extras,
            value_kinds=batch.value_kinds(),
            round=batch.round,
        )
        parts = [self._parts(whole, batch.samples, *share) for share in batch.shares]
        # A restarted controller may have other scores than its predecessor, whose parts count as
        # long as the journal does not say that all are there.
        stage = f"{batch.label}/{act}/{self.roles.caller.attempt}"
        files = list[FileEntry]()
        for index in range(max(map(len, parts))):
            owners = [owner for owner, own in enumerate(parts) if index < len(own)]
            requests = [
                _part(whole, batch.samples, len(parts) * index + owner, *parts[owner][index])
                for owner in owners
            ]
            id_ = RequestId(0, step, stage, index)
            answers = self.roles.call(self.actor, WRITE_ROWS, requests, id_, ranks=owners)
            files += [file for answer in answers for file in answer.files]
        return files

    def _parts(
        self, whole: WriteRows, samples: int, first: int, last: int
    ) -> list[tuple[int, int]]:
        """Split a range of prompts into ranges that fit one request each."""
        sizes = [
            len(encode(_part(whole, samples, 0, position, position + 1)))
            for position in range(first, last)
        ]
        cuts = chunks(sizes, self.chunk_bytes)
        return [(first + begin, first + end) for begin, end in cuts]


def _part(whole: WriteRows, samples: int, part: int, first: int, last: int) -> WriteRows:
    """Build the write request to the owner of prompts `[first, last)`."""
    rows = slice(first * samples, last * samples)
    return msgspec.structs.replace(
        whole,
        part=part,
        first=first,
        scores=whole.scores[rows],
        data_sources=whole.data_sources[first:last],
        ground_truths=whole.ground_truths[first:last],
        extra_infos=whole.extra_infos[first:last],
        extras=whole.extras[rows],
    )
