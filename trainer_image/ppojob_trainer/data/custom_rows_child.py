"""Child process that runs the user's row function, isolated from the job's secrets."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ppojob_api.problem import printable, shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.user_code import load_function, raised
from ppojob_trainer.data.custom_rows import MakeRows, RowsMade
from ppojob_trainer.errors import BadInput

_MODULE = "ppojob_rows"
_ANSWER_ROWS, _ANSWER_BYTES, _ANSWER_SECONDS = 256, 4 * 1024 * 1024, 1.0
"""Limits of one answer, so that a slow function does not reach the timeout."""
_ROWS: Final = "rows as dictionaries of JSON values"

# Bound before the user's file is imported, which may replace them.
_decode: Final = msgspec.msgpack.Decoder(MakeRows | None).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_dumps: Final = json.dumps


def _rows_of(request: MakeRows) -> Iterator[object]:
    """Import the file and call the function.

    It returns an iterable, or a PyTorch dataset with `__len__` and `__getitem__`.
    """
    allowed = "a function that returns rows, named by spec.data.train[].function"
    function = load_function(request.path, request.function, _MODULE, allowed)
    made: Any = function(**msgspec.json.decode(request.arguments))
    if isinstance(made, Iterable):
        return iter(made)
    if not hasattr(made, "__len__"):
        raise BadInput(shown(made), "the function returns no rows", _ROWS)
    return (made[number] for number in range(len(made)))


def _encoded(row: object) -> bytes:
    if not isinstance(row, Mapping):
        raise BadInput(shown(row), "every item is one row", _ROWS)
    try:
        text = _dumps(dict(row), allow_nan=False, ensure_ascii=False, default=_plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        why = printable(str(error), 200)
        raise BadInput("a row that is not JSON", why, _ROWS) from None


def _plain(value: Any) -> object:
    """Convert arrays and scalars of NumPy, PyTorch and pandas to lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _start() -> Callable[[bytes], bytes]:
    rows: Iterator[object] = iter(())

    def answer(body: bytes) -> bytes:
        nonlocal rows
        request, items = _decode(body), list[bytes]()
        try:
            if request is not None:
                rows = _rows_of(request)
            else:
                _append_rows(rows, items)
        except BadInput as refused:
            return _encode(RowsMade(items, *refused.args))
        except BaseException as error:  # the file is the user's: it may even call sys.exit
            text, where = raised(error, __file__)
            return _encode(RowsMade(items, text, where, "a function that returns rows"))
        return _encode(RowsMade(items))

    return answer


def _append_rows(rows: Iterator[object], items: list[bytes]) -> None:
    """Append the next rows to a list, within the limits of one answer."""
    size, end = 0, time.monotonic() + _ANSWER_SECONDS
    while len(items) < _ANSWER_ROWS and size < _ANSWER_BYTES and time.monotonic() < end:
        try:
            row = next(rows)
        except StopIteration:
            return
        items.append(_encoded(row))
        size += len(items[-1])


if __name__ == "__main__":
    guardian.main(_start)
