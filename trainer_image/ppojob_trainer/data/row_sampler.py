"""A function that chooses the rows of a step: the parent's side, and what it and its child say."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ppojob_api.v1alpha1.training import SamplerSpec
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.prompt_store import PromptRow, PromptStore
from ppojob_trainer.errors import ConfigError, SamplerFailed
from ppojob_trainer.json_value import Json

FIELD: Final = "spec.data.sampler"
MAX_STATE_BYTES: Final = 1024 * 1024
_SECONDS: Final = 600.0
"""For the import of the file, and for a call."""
_CHUNK_ROWS: Final = 1024
"""Of one message."""
_ATTEMPTS: Final = 2
"""Processes of which the last may be killed from outside: the kernel takes them first."""
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
    """A column of float64 as it is now."""

    name: str
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
    """Calls the function in a child, which is started anew where something killed it.

    Args:
        rows: of which it is told.
    """

    def __init__(self, spec: SamplerSpec, rows: PromptStore) -> None:
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
        """The rows of a step, and the state for the next one.

        Raises:
            SamplerFailed: the function raised, hung, died, or answered something else.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                if self._child is None or not self._child.is_alive:
                    self._start()
                for name, column in numbers.items():
                    self._ask(TellNumbers(name, column.tobytes()))
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
        for first in range(0, len(self._rows), _CHUNK_ROWS):
            some = range(first, min(first + _CHUNK_ROWS, len(self._rows)))
            self._ask(TellValues(self._cells(self._rows.rows(some))))

    def _cells(self, rows: Sequence[PromptRow]) -> dict[str, bytes]:
        """What stays of some rows, by the name of the column."""
        found: dict[str, list[Json]] = {"data_source": [row.data_source for row in rows]}
        for name in self._spec.columns:
            found[name] = [row.extra_info.get(name) for row in rows]
        return {name: msgspec.json.encode(cells) for name, cells in found.items()}

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
