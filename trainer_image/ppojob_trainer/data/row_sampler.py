"""Custom sampler: selects the rows of a step in a child process; the parent, and the messages."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, SamplerFailed

if TYPE_CHECKING:  # the child imports this module too, and these would slow its start
    from ppojob_api.v1alpha1.data import SamplerSpec
    from ppojob_trainer.data.prompt_store import PromptStore

FIELD: Final = "spec.data.sampler"
MAX_STATE_BYTES: Final = 1024 * 1024
_SECONDS: Final = 600.0
"""Timeout of an import and of a call."""
_CHUNK_ROWS: Final = 64
"""Rows per message with cells."""
_ATTEMPTS: Final = 2
"""Processes to try: the kernel kills them first when memory is short."""
_log = logging.getLogger(__name__)

Numbers = npt.NDArray[np.float64]


class OpenSampler(msgspec.Struct, frozen=True, tag=True):
    """Load a function and check its signature; the keyword arguments are JSON."""

    path: str  # file of the function; empty if it is built in
    function: str
    arguments: bytes


class AppendCells(msgspec.Struct, frozen=True, tag=True):
    """Cells of the next rows in the constant columns, as JSON lists by column."""

    cells: dict[str, bytes]


class SetNumbers(msgspec.Struct, frozen=True, tag=True):
    """The numbers (float64) of a column."""

    name: str
    numbers: bytes


class ChooseRows(msgspec.Struct, frozen=True, tag=True):
    """Call the function; the state is JSON."""

    step: int
    seed: int
    count: int
    state: str


SamplerRequest = OpenSampler | AppendCells | SetNumbers | ChooseRows


class Chosen(msgspec.Struct, frozen=True):
    """The selected rows and the next state, or a problem."""

    rows: list[int]
    state: str = "null"
    problem: str = ""


class RowSampler(Closeable):
    """Calls the function in a child process, which is restarted if it was killed."""

    def __init__(self, spec: "SamplerSpec", rows: "PromptStore") -> None:
        self._spec = spec
        self._rows = rows
        self._child: BoundedProcess | None = None

    def open(self) -> None:
        """Load the function; raises ConfigError if it does not exist or cannot be called."""
        try:
            self._start()
        except SamplerFailed as failure:
            raise ConfigError(str(failure)) from None

    def choose(
        self, step: int, seed: int, count: int, numbers: Mapping[str, Numbers], state: str
    ) -> tuple[list[int], str]:
        """Return the `count` rows of a step, and the state, JSON, for the next one.

        `numbers` are columns, (rows,) each. Raises SamplerFailed if the function raised, hung,
        died, or returned an invalid value.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                if self._child is None or not self._child.is_alive:
                    self._start()
                for name, column in numbers.items():
                    self._call(SetNumbers(name, column.tobytes()))
                chosen = self._call(ChooseRows(step, seed, count, state))
                return chosen.rows, chosen.state
            except ChildKilled as killed:
                if not left:
                    raise _failed(f"its process {killed}") from None
                _log.info("%s: called again: the process %s", FIELD, killed)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _start(self) -> None:
        self.close()
        module = "ppojob_trainer.data.row_sampler_child"
        self._child = BoundedProcess(module, memory_bytes=None, log=_log)
        source, spec = self._spec.source, self._spec
        path = "" if source is None else source.file or ""
        self._call(OpenSampler(path, spec.function, msgspec.json.encode(spec.arguments)))
        empty = set(spec.columns)
        for cells in self._cells():
            empty = {name for name in empty if all(cell is None for cell in cells[name])}
            encoded = {name: msgspec.json.encode(column) for name, column in cells.items()}
            self._call(AppendCells(encoded))
        if empty and len(self._rows):
            got, why = ", ".join(sorted(empty)), "no row has it"
            allowed = "entries of extra_info that some rows have"
            raise SamplerFailed(f"{FIELD}.columns: got {got}: {why}; {allowed}")

    def _cells(self) -> Iterator[dict[str, list[object]]]:
        """Yield the constant columns, some rows at a time."""
        for first in range(0, len(self._rows), _CHUNK_ROWS):
            rows = self._rows.rows(range(first, min(first + _CHUNK_ROWS, len(self._rows))))
            cells: dict[str, list[object]] = {
                name: [row.extra_info.get(name) for row in rows] for name in self._spec.columns
            }
            yield {**cells, "data_source": [row.data_source for row in rows]}

    def _call(self, request: SamplerRequest) -> Chosen:
        assert self._child is not None, "the child was started"
        try:
            body = self._child.call(msgspec.msgpack.encode(request), _SECONDS)
        except ChildKilled:
            raise
        except (ChildTimeout, ChildDied) as end:
            raise _failed(f"its process {end}") from None
        answer = msgspec.msgpack.decode(body, type=Chosen)
        if answer.problem:
            raise SamplerFailed(f"{FIELD}: {answer.problem}")
        return answer


def _failed(why: str) -> SamplerFailed:
    return SamplerFailed(f"{FIELD}: got no rows: {why}; a function that returns")
