"""Rows in flight: an engine generates rows of several steps together (partial rollout).

A phase generates the rows of one step to their end, and advances those of the following steps. An
unfinished row continues in the next phase with the weights of then, as the next segment of the row.
Between phases the engine is idle and no tool call is in flight, so weight sync, validation and
checkpoints work as usual.

The end of a phase depends on what was generated, never on time: the rows of its step have ended,
and the engine has made as many steps as a phase's share of the longest of them. So all phases do
about the same work.

With dynamic sampling the batches are rounds, named by their number in the run, since the scores
decide which step uses a round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.checkpoint.manifest import entry_of
from ppojob_trainer.rpc.messages.rollout import Generate
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.workers.generation import TRAIN, Generation, Row, batches_of, kept_rows
from ppojob_trainer.workers.row_channels import GeneratedRows
from ppojob_trainer.workers.state_writer import Write

UNDER_WAY_POINT: Final = durable.point("rows.under_way", *durable.FILE_ACTS)
RowKey = tuple[int, str, int]
"""Step (or number of the round), purpose of its batch, and the row's number there."""
_State = tuple[int, list[tuple[RowKey, RowState]]]
"""The step (or the number of the round) of the last phase, and the rows."""
_DECODER: Final = msgspec.msgpack.Decoder(_State)
_FOLDER: Final = "rollout"


@dataclass
class RowsInFlight:
    """Rows that were begun, with their progress."""

    generation: Generation
    _rows: dict[RowKey, RowState] = field(default_factory=dict)
    _last: int = 0  # step of the last phase, or number of its round
    _begun: tuple[int, int, dict[RowKey, RowState]] | None = None
    """The current step with rounds, and the state (last phase, rows) before it."""

    def generate(self, request: Generate) -> list[GeneratedRows]:
        """Run one phase; return the rows of each batch of the request's step that this rank keeps.

        Rows of later batches stay here. A phase that finished before a state was saved is not
        repeated: its step failed later.
        """
        of_step = request.step
        if request.number:
            if request.round == 0:
                self._begun = of_step, self._last, self._rows
            request = _by_number(request)
        own = batches_of(request)
        rows = {
            _key(row): row
            for batch in [*own, *(one for later in request.ahead for one in batches_of(later))]
            for row in self.generation.rows(batch)
        }
        episodes = {key: self._episode(row, key) for key, row in rows.items()}
        wanted = [one.state for key, one in episodes.items() if key[0] == request.step]
        if request.step != self._last or not all(state.is_over for state in wanted):
            with self.generation.progress.of(len(wanted)):
                self._phase(of_step, rows, episodes, wanted)
        # Only now: a failed phase changes nothing.
        self._rows = {key: episode.state for key, episode in episodes.items()}
        self._last = request.step
        return [
            kept_rows(batch, (episodes[_key(row)] for row in self.generation.rows(batch)))
            for batch in own
        ]

    def _phase(
        self,
        step: int,
        rows: Mapping[RowKey, Row],
        episodes: Mapping[RowKey, Episode],
        wanted: Sequence[RowState],
    ) -> None:
        """Generate `wanted` to their end, and advance the others, in step order."""
        phases = self.generation.spec.phases_of_rows
        turns = self.generation.turns
        longest: list[float] = []  # once all have ended: engine steps of the longest of them

        def is_enough(steps: int, _: int) -> bool:
            if not longest:
                ended = sum(state.is_over for state in wanted)
                self.generation.progress.ended = ended
                if ended < len(wanted):
                    return False
                delay = turns.delay if turns else 0
                took = [state.drawn + delay * state.answered for state in wanted]
                longest.append(max(took, default=0))
            return steps * phases >= longest[0]

        self.generation.drive(step, [*rows.values()], [*episodes.values()], is_enough)

    def _episode(self, row: Row, key: RowKey) -> Episode:
        begun = self._rows.get(key)
        return self.generation.episode(row, "/".join(map(str, key)), begun and begun.copy())

    def state(self, step: int) -> Write:
        """Return a writer of the current state: the rows of the steps after `step`.

        The state of a step that fails between two rounds is that before its first round, since it
        generates all of its rounds again. Of ranks that share an engine the first one writes. The
        writer raises StorageError if the disk refuses.
        """
        rank = self.generation.world.rank
        if rank % self.generation.spec.rollout.parallelism.tensor:
            return lambda _: []
        path = f"{_FOLDER}/rank-{rank:05d}/under_way.msgpack"
        last, rows, generated = self._last, self._rows, step
        if self._begun is not None:
            if step < self._begun[0]:
                _, last, rows = self._begun
            generated = last
        later = [(key, row) for key, row in rows.items() if key[0] > generated]
        content = msgspec.msgpack.encode((last, later))

        def write(folder: Path) -> list[FileEntry]:
            durable.make_folder((folder / path).parent, parents=True, exist_ok=True)
            durable.write_file(folder / path, content, UNDER_WAY_POINT)
            return [entry_of(folder, path, _FOLDER, rank)]

        return write

    def restore(self, folder: Path | None, files: Iterable[FileEntry]) -> None:
        """Load the rows in flight of a checkpoint, of any number of ranks; none without a folder.

        `files` are all files of the checkpoint. A rank continues the rows that are requested from
        it.
        """
        self._rows, self._last, self._begun = {}, 0, None
        if folder is None:
            return
        for path in [folder / f.path for f in files if f.path.startswith(f"{_FOLDER}/")]:
            self._last, rows = _DECODER.decode(path.read_bytes())
            self._rows |= dict(rows)


def generate(
    generation: Generation, in_flight: RowsInFlight | None, request: Generate
) -> list[GeneratedRows]:
    """Run one generation phase; return the rows of each batch that this rank keeps."""
    if in_flight is not None and request.purpose == TRAIN:
        return in_flight.generate(request)
    return generation.run(batches_of(request))


def _by_number(request: Generate) -> Generate:
    """Rename a round, and those after it, to their numbers in the run."""
    ahead = [_by_number(later) for later in request.ahead]
    return msgspec.structs.replace(request, step=request.number, round=0, ahead=ahead)


def _key(row: Row) -> RowKey:
    return row.batch.step, row.batch.purpose, row.number
