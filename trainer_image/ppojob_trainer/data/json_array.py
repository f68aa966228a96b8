"""A JSON file that is one array of objects, as ``json.dump`` writes a list of rows."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.data.row_file import MAX_CELL_BYTES, BadRow, Row, file_digest

MAX_ARRAY_BYTES = 256 * 1024 * 1024
"""An array is read whole; lines are not."""
_ALLOWED = "one array of objects, or one object a line"


class JsonArray:
    """The rows of a JSON array.

    Args:
        path: the file.
        items: the text of each row.
    """

    def __init__(self, path: str, items: list[msgspec.Raw]) -> None:
        self._path = path
        self._items = items
        self._num_rows = len(items)

    @classmethod
    def read(cls, path: str) -> "JsonArray | BadRow":
        """Read a file, or say why it cannot be read."""
        size = Path(path).stat().st_size
        if size > MAX_ARRAY_BYTES:
            got, why = f"an array of {size} bytes", f"above {MAX_ARRAY_BYTES}"
            return BadRow(path, got, f"{why} it would fill the memory", "one object a line")
        try:
            return cls(path, msgspec.json.decode(Path(path).read_bytes(), type=list[msgspec.Raw]))
        except UnicodeDecodeError as error:
            got, why = "bytes that are not UTF-8", str(error.reason)
            return BadRow(path, got, why, "UTF-8", DataReason.NOT_UTF8)
        except RecursionError:
            why = "nested too deep to be read"
            return BadRow(path, "lists or objects in each other", why, _ALLOWED)
        except msgspec.MsgspecError as error:
            return BadRow(path, "an array that is not JSON", str(error), _ALLOWED)

    @property
    def path(self) -> str:
        """As the specification names it."""
        return self._path

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._num_rows

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield every object in order."""
        for number, item in enumerate(self._items):
            yield parse_item(self.place(number), bytes(item))

    def digest(self) -> str:
        """SHA-256 of the file, in hex."""
        return file_digest(self._path)

    def place(self, number: int) -> str:
        """``file[number]``, counted from 0."""
        return f"{self._path}[{number}]"

    def close(self) -> None:
        """Give the rows back."""
        self._items = []


def parse_item(place: str, item: bytes) -> Row | BadRow:
    """The row that a piece of JSON is.

    Args:
        place: of the row, for messages.
        item: its text.
    """
    if len(item) > MAX_CELL_BYTES:
        got = f"more than {MAX_CELL_BYTES} bytes"
        return BadRow(place, got, "too long for one row", f"at most {MAX_CELL_BYTES} bytes")
    try:
        row = msgspec.json.decode(item)
    except UnicodeDecodeError as error:
        got, why = "bytes that are not UTF-8", str(error.reason)
        return BadRow(place, got, why, "UTF-8", DataReason.NOT_UTF8)
    except (msgspec.MsgspecError, RecursionError) as error:
        return BadRow(place, "what is not JSON", str(error), _ALLOWED)
    if isinstance(row, dict):
        return row
    got, why = f"a JSON {type(row).__name__}", "every item is one row"
    return BadRow(place, got, why, 'an object such as {"prompt": [...], "data_source": "..."}')


def begins_array(path: str) -> bool:
    """Whether the first character that is no white space opens an array of objects."""
    with open(path, "rb") as file:
        return b"".join(file.read(4_096).split())[:2] in (b"[{", b"[]")
