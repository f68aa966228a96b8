"""JSON: one object a line, or one array of objects, as ``json.dump`` writes a list of rows."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.row_file import Row, RowFile

MAX_ARRAY_BYTES = 256 * 1024 * 1024
"""An array is read whole; lines are not."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines(RowFile):
    """A JSON-lines file, in UTF-8 without a byte order mark."""

    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every line's object in order."""
        with open(self.path, "rb") as file:
            for line in file:
                number, place = self.num_rows, self.place(self.num_rows)
                self.num_rows += 1
                if number == 0 and line.startswith(_BYTE_ORDER_MARK):
                    got, allowed = "a byte order mark", "UTF-8 without one"
                    yield DataProblem(place, got, "not part of JSON", allowed)
                elif not line.strip():
                    why = "every line is one row"
                    yield DataProblem(place, "a blank line", why, "no blank lines")
                else:
                    yield parse_row(place, line, "line")

    def place(self, number: int) -> str:
        """``file:line``, counted from 1."""
        return f"{self.path}:{number + 1}"


class JsonArray(RowFile):
    """The rows of a JSON array.

    Args:
        path: the file.
        items: the text of each row.
    """

    def __init__(self, path: str, items: list[msgspec.Raw]) -> None:
        super().__init__(path, len(items))
        self._items = items

    @classmethod
    def read(cls, path: str) -> "JsonArray | DataProblem":
        """Read a file, or say why it cannot be read."""
        size = Path(path).stat().st_size
        if size > MAX_ARRAY_BYTES:
            got, why = f"an array of {size} bytes", f"above {MAX_ARRAY_BYTES}"
            return DataProblem(path, got, f"{why} it would fill the memory", "one object a line")
        try:
            return cls(path, msgspec.json.decode(Path(path).read_bytes(), type=list[msgspec.Raw]))
        except msgspec.MsgspecError as error:
            allowed = "one array of objects, or one object a line"
            return DataProblem(path, "an array that is not JSON", str(error), allowed)

    def rows(self) -> Iterator[Row | DataProblem]:
        """Yield every object in order."""
        for number, item in enumerate(self._items):
            yield parse_row(self.place(number), bytes(item))


def begins_array(path: str) -> bool:
    """Whether the first character that is no white space opens an array of objects."""
    with open(path, "rb") as file:
        return b"".join(file.read(4_096).split())[:2] in (b"[{", b"[]")


def parse_row(place: str, text: bytes, unit: str = "item") -> Row | DataProblem:
    """The row that a piece of JSON is.

    Args:
        place: of the row, for messages.
        text: the JSON.
        unit: what the piece is of its file, for messages.
    """
    try:
        row = msgspec.json.decode(text)
    except UnicodeDecodeError as error:
        got, why = "bytes that are not UTF-8", str(error.reason)
        return DataProblem(place, got, why, "UTF-8")
    except msgspec.MsgspecError as error:
        allowed = "one JSON object a line, numbers finite, no lone surrogates"
        return DataProblem(place, "text that is not JSON", str(error), allowed)
    if isinstance(row, dict):
        return row
    got, why = f"a JSON {type(row).__name__}", f"every {unit} is one row"
    return DataProblem(place, got, why, 'an object such as {"prompt": [...], "data_source": "..."}')
