"""Custom sampler: selects the rows of a step in a child process; the parent, and the messages."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, SamplerFailed

if TYPE_CHECKING:  # the child loads this module too, and has no time for these
    from ppojob_api.v1alpha1.training import SamplerSpec
    from ppojob_trainer.data.prompt_store import PromptStore

FIELD: Final = "spec.data.sampler"
MAX_STATE_BYTES: Final = 1024 * 1024
_SECONDS: Final = 600.0
"""Timeout of the import of the file, and of a call."""
_CHUNK_ROWS: Final = 1024
_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Size of one message with cells; a larger row has a message to itself."""
_ROW_BYTES: Final = 32 * 1024 * 1024
"""Of the cells of a row at most, well below what a message may have."""
_CHUNK_NUMBERS: Final = 1 << 20
"""Of one message with numbers of rows."""
_NULL: Final = b"null"
_ATTEMPTS: Final = 2
"""Processes to try: the last may be killed from outside, since the kernel takes them first."""
_log = logging.getLogger(__name__)

Numbers = npt.NDArray[np.float64]


class OpenSampler(msgspec.Struct, frozen=True, tag=True):
    """Find the function and check its signature; the keyword arguments are JSON.

    Attributes:
        path: of its file; empty where it is built in.
    """

    path: str
    function: str
    arguments: bytes


class TellValues(msgspec.Struct, frozen=True, tag=True):
    """Cells of some more rows in the columns that stay, as JSON lists."""

    cells: dict[str, bytes]


class TellNumbers(msgspec.Struct, frozen=True, tag=True):
    """Some more of a column of float64 as it is now; those from row 0 begin it anew."""

    name: str
    first: int
    numbers: bytes


class ChooseRows(msgspec.Struct, frozen=True, tag=True):
    """Call the function; the state is JSON."""

    step: int
    seed: int
    count: int
    state: str


SamplerRequest = OpenSampler | TellValues | TellNumbers | ChooseRows


class Chosen(msgspec.Struct, frozen=True):
    """The rows that were asked for, and the next state; or what is wrong.

    Attributes:
        got: what is there in their place; empty where nothing is wrong.
    """

    rows: list[int]
    state: str = "null"
    got: str = ""
    why: str = ""
    allowed: str = ""


class RowSampler(Closeable):
    """Calls the function in a child process, which is restarted if something killed it.

    Args:
        rows: the rows that the function gets.
    """

    def __init__(self, spec: "SamplerSpec", rows: "PromptStore") -> None:
        self._spec = spec
        self._rows = rows
        self._child: BoundedProcess | None = None

    def open(self) -> None:
        """Find the function.

        Raises:
            ConfigError: there is none that can be called.
        """
        try:
            self._start()
        except SamplerFailed as failure:
            raise ConfigError(str(failure)) from None

    def choose(
        self, step: int, seed: int, count: int, numbers: Mapping[str, Numbers], state: str
    ) -> tuple[list[int], str]:
        """Return the rows of a step, and the state for the next one.

        Raises:
            SamplerFailed: the function raised, hung, died, or returned something else.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                if self._child is None or not self._child.is_alive:
                    self._start()
                for name, column in numbers.items():
                    for first in range(0, len(column), _CHUNK_NUMBERS):
                        some = column[first : first + _CHUNK_NUMBERS]
                        self._ask(TellNumbers(name, first, some.tobytes()))
                chosen = self._ask(ChooseRows(step, seed, count, state))
                return chosen.rows, chosen.state
            except ChildKilled as killed:
                if not left:
                    raise _failed(f"its process {killed}") from None
                _log.info("%s: asked again: the process %s", FIELD, killed)
        raise AssertionError("the last attempt answers or fails")

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _start(self) -> None:
        self.close()
        module = "ppojob_trainer.data.row_sampler_child"
        self._child = BoundedProcess(module, memory_bytes=None, log=_log)
        source, spec = self._spec.source, self._spec
        path = "" if source is None else source.file or ""
        self._ask(OpenSampler(path, spec.function, msgspec.json.encode(spec.arguments)))
        empty = set(spec.columns)
        for cells in self._messages():
            empty = {name for name in empty if set(cells[name]) <= {_NULL}}
            lists = {name: b"[%b]" % b",".join(column) for name, column in cells.items()}
            self._ask(TellValues(lists))
        if empty and len(self._rows):
            got, why = ", ".join(sorted(empty)), "no row has it"
            allowed = "entries of extra_info that some rows have"
            raise SamplerFailed(f"{FIELD}.columns: got {got}: {why}; {allowed}")

    def _messages(self) -> Iterator[dict[str, list[bytes]]]:
        """What stays of all rows, some at a time: cells as JSON, by the name of the column."""
        cells: dict[str, list[bytes]] = defaultdict(list)
        rows = size = 0
        for own in self._cells():
            more = sum(map(len, own.values()))
            if rows == _CHUNK_ROWS or (rows and size + more > _CHUNK_BYTES):
                yield cells
                cells, rows, size = defaultdict(list), 0, 0
            for name, cell in own.items():
                cells[name].append(cell)
            rows, size = rows + 1, size + more
        if rows:
            yield cells

    def _cells(self) -> Iterator[dict[str, bytes]]:
        """What stays of each row, by the name of the column."""
        for first in range(0, len(self._rows), _CHUNK_ROWS):
            some = range(first, min(first + _CHUNK_ROWS, len(self._rows)))
            for number, row in zip(some, self._rows.rows(some), strict=True):
                told = {name: row.extra_info.get(name) for name in self._spec.columns}
                told["data_source"] = row.data_source
                cells = {name: msgspec.json.encode(cell) for name, cell in told.items()}
                if (size := sum(map(len, cells.values()))) > _ROW_BYTES:
                    got, allowed = f"{size} bytes of row {number}", f"at most {_ROW_BYTES} a row"
                    why = "a row is told at one time"
                    raise SamplerFailed(f"{FIELD}.columns: got {got}: {why}; {allowed}")
                yield cells

    def _ask(self, request: SamplerRequest) -> Chosen:
        assert self._child is not None, "it is started first"
        try:
            body = self._child.call(msgspec.msgpack.encode(request), _SECONDS)
        except ChildTimeout:
            raise _failed(f"it answered nothing in {_SECONDS:g} s") from None
        except ChildKilled:
            raise
        except ChildDied as died:
            raise _failed(f"its process {died}") from None
        answer = msgspec.msgpack.decode(body, type=Chosen)
        if answer.got:
            raise SamplerFailed(f"{FIELD}: got {answer.got}: {answer.why}; {answer.allowed}")
        return answer


def _failed(why: str) -> SamplerFailed:
    return SamplerFailed(f"{FIELD}: got no rows: {why}; a function that answers")
