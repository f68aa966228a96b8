"""Rows of several steps that an engine draws side by side: a long one holds up no step but its own.

A phase draws the rows of one step to their end, and those of the steps behind it as far as they
come meanwhile. What is not drawn to its end goes on in the next phase, with the weights that the
engine has then, as the next segment of its row. Between two phases the engine is idle and no tool
is at work, so weights, validations and checkpoints come as they do elsewhere.

A phase ends by what was drawn, never by time: once the rows of its step have ended, and the engine
has made so many steps as are the share of a phase of the longest of them. So each phase does about
as much, also where the rows of its step ended in one before.

Of a job with dynamic sampling the batches are rounds, named by their numbers in the run: which step
takes one is known behind the scores of those before it.

Engines in pods of their own draw a phase while others train; those of the ranks that train draw it
before these train.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.checkpoint.files import entry_of
from ppojob_trainer.rpc.messages.rollout import Generate
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.workers.generation import Generation, Row, batches_of
from ppojob_trainer.workers.handover import MadeRows
from ppojob_trainer.workers.state_writer import Write

UNDER_WAY_POINT: Final = durable.point("rows.under_way", *durable.FILE_ACTS)
RowKey = tuple[int, str, int]
"""Step, or number of the round, and purpose of its batch, and its number there."""
_State = tuple[int, list[tuple[RowKey, RowState]]]
"""The step of the last phase, or the number of its round, and the rows."""
_DECODER: Final = msgspec.msgpack.Decoder(_State)
_OLDER: Final = msgspec.msgpack.Decoder(list[tuple[RowKey, RowState]])
"""Of checkpoints of versions that did not say which phase was the last."""
_FOLDER: Final = "rollout"


@dataclass
class RowsUnderWay:
    """Rows that were begun, as far as they came; whoever asks for rows says which."""

    generation: Generation
    _rows: dict[RowKey, RowState] = field(default_factory=dict)
    _last: int = 0  # step of the last phase, or number of its round
    _begun: tuple[int, int, dict[RowKey, RowState]] | None = None
    """Of the step whose rounds are drawn: its number, and what the last phase before it left."""

    def draw(self, request: Generate) -> list[MadeRows]:
        """One phase: the rows of each batch of the request's step that this rank keeps.

        Those of the batches ahead of it stay here, as far as they were drawn. A phase that was done
        before a state was saved is not done again: its step failed behind it.
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
            with self.generation.drawing.of(len(wanted)):
                self._phase(of_step, rows, episodes, wanted)
        # Not before: of a phase that fails nothing is kept.
        self._rows = {key: episode.state for key, episode in episodes.items()}
        self._last = request.step
        made = []
        for batch in own:
            drawn = [episodes[_key(row)].trajectory for row in self.generation.rows(batch)]
            whole = MadeRows(batch.first, batch.prompts, batch.samples, drawn)
            made.append(whole.within(batch.kept))
        return made

    def _phase(
        self,
        step: int,
        rows: Mapping[RowKey, Row],
        episodes: Mapping[RowKey, Episode],
        wanted: Sequence[RowState],
    ) -> None:
        """Draw `wanted` to their end, and the others in their company; all in order of steps."""
        phases = self.generation.spec.phases_of_rows
        turns = self.generation.turns
        longest: list[float] = []  # once all have ended: engine steps of the longest of them

        def is_enough(steps: int, _: int) -> bool:
            if not longest:
                ended = sum(state.is_over for state in wanted)
                self.generation.drawing.ended = ended
                if ended < len(wanted):
                    return False
                delay = turns.delay if turns else 0
                took = [state.drawn + delay * state.answered for state in wanted]
                longest.append(max(took, default=0))
            return steps * phases >= longest[0]

        asked = [key for key, episode in episodes.items() if not episode.state.is_over]
        own_rows, own = [rows[key] for key in asked], [episodes[key] for key in asked]
        self.generation.drive(step, own_rows, own, is_enough)

    def _episode(self, row: Row, key: RowKey) -> Episode:
        """A row from where it is."""
        begun = self._rows.get(key)
        return self.generation.episode(row, "/".join(map(str, key)), begun and begun.copy())

    def state(self, step: int) -> Write:
        """What writes the rows of the steps behind one as they are now.

        A step that fails between two rounds draws all of its rounds again, as its weights are there
        still: how many it takes may hang on what failed. So that state is of before its first one.
        Of ranks that share an engine the first has them. Where the disk refuses it raises
        StorageError.
        """
        rank = self.generation.world.rank
        if rank % self.generation.spec.rollout.parallelism.tensor:
            return lambda _: []
        path = f"{_FOLDER}/rank-{rank:05d}/under_way.msgpack"
        last, rows, drawn = self._last, self._rows, step
        if self._begun is not None:
            if step < self._begun[0]:
                _, last, rows = self._begun
            drawn = last
        behind = [(key, row) for key, row in rows.items() if key[0] > drawn]
        content = msgspec.msgpack.encode((last, behind))

        def write(folder: Path) -> list[FileEntry]:
            durable.make_folder((folder / path).parent, parents=True, exist_ok=True)
            durable.write_file(folder / path, content, UNDER_WAY_POINT)
            return [entry_of(folder, path, _FOLDER, rank)]

        return write

    def restore(self, folder: Path | None, files: Iterable[FileEntry]) -> None:
        """Take up the rows that ranks have written, in whichever number; none without a folder.

        The files are all those of a checkpoint. A rank goes on with the rows that it is asked for,
        and forgets the others.
        """
        self._rows, self._last, self._begun = {}, 0, None
        if folder is None:
            return
        for path in [folder / f.path for f in files if f.path.startswith(f"{_FOLDER}/")]:
            content = path.read_bytes()
            try:
                self._last, rows = _DECODER.decode(content)
            except msgspec.ValidationError:
                rows = _OLDER.decode(content)
            self._rows |= dict(rows)


def _by_number(request: Generate) -> Generate:
    """A round, and those ahead of it, by their numbers in the run."""
    ahead = [_by_number(later) for later in request.ahead]
    return msgspec.structs.replace(request, step=request.number, round=0, ahead=ahead)


def _key(row: Row) -> RowKey:
    return row.batch.step, row.batch.purpose, row.number
