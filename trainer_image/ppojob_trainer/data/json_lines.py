"""JSON lines: one object a line."""

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.data.row_file import MAX_CELL_BYTES, BadRow, Row, file_digest

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """A JSON-lines file.

    Args:
        path: the file, in UTF-8 without a byte order mark.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115  closed by close()
        self._num_rows = 0

    @property
    def path(self) -> str:
        """As the specification names it."""
        return self._path

    @property
    def num_rows(self) -> int:
        """Number of lines, after the pass over ``rows``."""
        return self._num_rows

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every line's object in order."""
        while line := self._file.readline(MAX_CELL_BYTES + 1):
            number = self._num_rows
            self._num_rows += 1
            if len(line) > MAX_CELL_BYTES:
                yield BadRow(
                    self.place(number),
                    f"more than {MAX_CELL_BYTES} bytes without an end of line",
                    "too long for one row",
                    f"lines of at most {MAX_CELL_BYTES} bytes",
                )
                return
            try:
                yield self._parse(number, line)
            except BadRow as bad:
                yield bad

    def digest(self) -> str:
        """SHA-256 of the file, in hex."""
        return file_digest(self._path)

    def place(self, number: int) -> str:
        """``file:line``, counted from 1."""
        return f"{self._path}:{number + 1}"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _parse(self, number: int, line: bytes) -> Row:
        place = self.place(number)
        if number == 0 and line.startswith(_BYTE_ORDER_MARK):
            raise BadRow(f"{place}:1", "a byte order mark", "not part of JSON", "UTF-8 without one")
        if not line.strip():
            raise BadRow(place, "a blank line", "every line is one row", "no blank lines")
        try:
            row = msgspec.json.decode(line)
        except UnicodeDecodeError as error:
            got, why = "bytes that are not UTF-8", str(error.reason)
            raise BadRow(place, got, why, "UTF-8", DataReason.NOT_UTF8) from None
        except RecursionError:
            got, why = "lists or objects in each other", "nested too deep to be read"
            raise BadRow(place, got, why, "a flatter row") from None
        except msgspec.MsgspecError as error:
            raise _malformed(place, line, str(error)) from None
        if not isinstance(row, dict):
            raise BadRow(
                place,
                f"a JSON {type(row).__name__}",
                "every line is one row",
                'an object such as {"prompt": [...], "data_source": "..."}',
            )
        return row


def _malformed(place: str, line: bytes, error: str) -> BadRow:
    """Name the column of a mistake: the parser tells its byte."""
    told = error.rpartition("(byte ")[2].rstrip(")")
    column = int(told) + 1 if told.isdigit() else len(line.rstrip()) + 1
    begin = max(0, column - 1)
    got = ascii(line[begin : begin + 20].decode("utf-8", errors="replace")) or "the end of the line"
    return BadRow(
        f"{place}:{column}",
        got if begin < len(line.rstrip()) else "the end of the line",
        "not JSON: " + error.partition(" (byte")[0].removeprefix("JSON is malformed: "),
        "one JSON object a line, numbers finite, no lone surrogates",
    )
