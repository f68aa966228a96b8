"""Rows from a user's Python file: the parent's side, and the messages between both processes."""

import hashlib
import logging
from collections.abc import Iterator, Mapping

import msgspec

from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.data.formats import Row, RowFile, parse_row
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.json_value import Json

_ROW_SECONDS = 600.0
"""Timeout of the import of the file, and of a row; it may call a model or a hub."""
_log = logging.getLogger(__name__)


class MakeRows(msgspec.Struct, frozen=True):
    """Import the file and call its function or class; the keyword arguments are JSON.

    It is sent once; later requests are None, for more rows.
    """

    path: str
    function: str
    arguments: bytes


class RowsMade(msgspec.Struct, frozen=True):
    """The next rows as JSON, none at the end; after them a problem, if any."""

    items: list[bytes]
    got: str = ""  # invalid value instead of the next row; empty without a problem
    why: str = ""
    allowed: str = ""


class CustomRows(RowFile):
    """The rows of a Python file, produced in a child process while they are read."""

    def __init__(self, path: str, child: BoundedProcess) -> None:
        super().__init__(path)
        self._child = child
        self._digest = hashlib.sha256()

    @classmethod
    def open(
        cls, path: str, function: str, arguments: Mapping[str, Json]
    ) -> "CustomRows | DataProblem":
        """Import a file and call its function or class, or return the problem."""
        child = BoundedProcess("ppojob_trainer.data.custom_rows_child", memory_bytes=None, log=_log)
        opened = cls(path, child)
        answer = opened._call(MakeRows(path, function, msgspec.json.encode(arguments)))
        if not answer.got:
            return opened
        opened.close()
        return DataProblem(path, answer.got, answer.why, answer.allowed)

    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every row in order; a problem is the last item."""
        while True:
            answer = self._call(None)
            for item in answer.items:
                self._digest.update(item + b"\n")
                place = self.place(self.num_rows)
                self.num_rows += 1
                yield parse_row(place, item)
            if answer.got:
                place = self.place(self.num_rows)
                self.num_rows += 1
                yield DataProblem(place, answer.got, answer.why, answer.allowed)
            if answer.got or not answer.items:
                return

    def digest(self) -> str:
        """Return the SHA-256 of the rows as JSON lines, in hex."""
        return self._digest.hexdigest()

    def close(self) -> None:
        self._child.kill()

    def _call(self, request: MakeRows | None) -> RowsMade:
        try:
            body = self._child.call(msgspec.msgpack.encode(request), _ROW_SECONDS)
        except (ChildTimeout, ChildDied) as end:
            return RowsMade([], "no row", f"its process {end}", "a function that returns")
        return msgspec.msgpack.decode(body, type=RowsMade)
