"""Rows of several steps that an engine draws side by side: a long one holds up no step but its own.

A phase draws the rows of one step to their end, and those of the steps behind it as far as they
come meanwhile. What is not drawn to its end goes on in the next phase, with the weights that the
engine has then, as the next segment of its row. Between two phases the engine is idle, so weights,
validations and checkpoints come as they do elsewhere.

A phase ends by what was drawn, never by time: once the rows of its step have ended, and the engine
has made so many steps as are the share of a phase of the longest of them. So each phase does about
as much, also where the rows of its step ended in one before.

Engines in pods of their own draw a phase while others train; those of the ranks that train draw it
before these train.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.files import sha256_of
from ppojob_trainer.rollout.protocol import Finished, Request, generate
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rpc.messages.rollout import Generate
from ppojob_trainer.rpc.messages.saving import SavedFile
from ppojob_trainer.workers.generation import Generation, Row, batches_of
from ppojob_trainer.workers.handover import MadeRows
from ppojob_trainer.workers.state_writer import Write

UNDER_WAY_POINT: Final = durable.point("rows.under_way", *durable.FILE_ACTS)
RowKey = tuple[int, str, int]
"""Step and purpose of its batch, and its number there."""
_NOTHING: Final = Trajectory((), "abort")
_State = tuple[int, list[tuple[RowKey, Trajectory]]]
"""The step of the last phase, and what was drawn of the rows."""
_DECODER: Final = msgspec.msgpack.Decoder(_State)
_OLDER: Final = msgspec.msgpack.Decoder(list[tuple[RowKey, Trajectory]])
"""Of checkpoints of versions that did not say which phase was the last."""
_FOLDER: Final = "rollout"


@dataclass
class RowsUnderWay:
    """Rows that were begun, by what was drawn of them; whoever asks for rows says which."""

    generation: Generation
    _drawn: dict[RowKey, Trajectory] = field(default_factory=dict)
    _last: int = 0  # step of the last phase

    def draw(self, request: Generate) -> list[MadeRows]:
        """One phase: the rows of each batch of the request's step that this rank keeps.

        Those of the batches ahead of it stay here, as far as they were drawn. A phase that was done
        before a state was saved is not done again: its step failed behind it.
        """
        own = batches_of(request)
        rows = {
            _key(row): row
            for batch in [*own, *(one for later in request.ahead for one in batches_of(later))]
            for row in self.generation.rows(batch)
        }
        self._drawn = {key: self._drawn.get(key, _NOTHING) for key in rows}
        wanted = {key for key in rows if key[0] == request.step}
        is_missing = any(self._drawn[key].finish_reason == "abort" for key in wanted)
        if is_missing or request.step != self._last:
            with self.generation.drawing.of(len(wanted)):
                self._phase(rows, wanted)
            self._last = request.step
        made = []
        for batch in own:
            drawn = [self._drawn[_key(row)] for row in self.generation.rows(batch)]
            whole = MadeRows(batch.first, batch.prompts, batch.samples, drawn)
            made.append(whole.within(batch.kept))
        return made

    def _phase(self, rows: dict[RowKey, Row], wanted: Set[RowKey]) -> None:
        """Draw `wanted` to their end, and the others in their company; all in order of steps."""
        phases = self.generation.spec.phases_of_rows
        before = {_name(key): len(drawn.tokens) for key, drawn in self._drawn.items()}
        asked = {
            _name(key): key for key, drawn in self._drawn.items() if drawn.finish_reason == "abort"
        }

        def is_enough(steps: int, ended: Mapping[str, Finished]) -> bool:
            missing = sum(key in wanted and name not in ended for name, key in asked.items())
            self.generation.drawing.ended = len(wanted) - missing
            if missing:
                return False
            lengths = [
                before[name] + (len(ended[name].tokens) if name in ended else 0)
                for name in map(_name, wanted)
            ]
            return steps * phases >= max(lengths, default=0)

        requests = [_continued(name, rows[key], self._drawn[key]) for name, key in asked.items()]
        for response in generate(self.generation.engine, requests, is_enough):
            key = asked[response.request_id]
            self._drawn[key] = _with_segment(self._drawn[key], response)

    def state(self, step: int) -> Write:
        """What writes the rows of the steps behind one as they are now.

        Of ranks that share an engine the first has them. Where the disk refuses it raises
        StorageError.
        """
        rank = self.generation.world.rank
        if rank % self.generation.spec.rollout.parallelism.tensor:
            return lambda _: []
        path = f"{_FOLDER}/rank-{rank:05d}/under_way.msgpack"
        behind = [(key, row) for key, row in self._drawn.items() if key[0] > step]
        content = msgspec.msgpack.encode((self._last, behind))

        def write(folder: Path) -> list[SavedFile]:
            durable.make_folder((folder / path).parent, parents=True, exist_ok=True)
            durable.write_file(folder / path, content, UNDER_WAY_POINT)
            return [SavedFile(path, *sha256_of(folder / path))]

        return write

    def restore(self, folder: Path | None, files: Iterable[SavedFile]) -> None:
        """Take up the rows that ranks have written, in whichever number; none without a folder.

        The files are all those of a checkpoint. A rank goes on with the rows that it is asked for,
        and forgets the others.
        """
        self._drawn, self._last = {}, 0
        if folder is None:
            return
        for path in [folder / f.path for f in files if f.path.startswith(f"{_FOLDER}/")]:
            content = path.read_bytes()
            try:
                self._last, rows = _DECODER.decode(content)
            except msgspec.ValidationError:
                rows = _OLDER.decode(content)
            self._drawn |= dict(rows)


def _key(row: Row) -> RowKey:
    return row.batch.step, row.batch.purpose, row.number


def _name(key: RowKey) -> str:
    return "/".join(map(str, key))


def _continued(name: str, row: Row, drawn: Trajectory) -> Request:
    """What the engine is asked for: the rest of a row, by a random stream of its own."""
    before = drawn.tokens
    return Request(
        name,
        (*row.prompt.tokens, *before),
        replace(row.sampling, max_tokens=row.sampling.max_tokens - len(before)),
        row.seed_of(len(drawn.segments)),
        row.prompt.pictures,
    )


def _with_segment(drawn: Trajectory, response: Finished) -> Trajectory:
    own = Trajectory.of(response)
    return replace(own, segments=(*drawn.segments, *own.segments))
