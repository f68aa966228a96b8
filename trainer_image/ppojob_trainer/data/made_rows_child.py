"""The child that makes rows: it runs the user's function, away from what the job keeps secret."""

import inspect
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.problem import printable, shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import UnusableModule, load_module, raised
from ppojob_trainer.data.made_rows import MakeRequest, MakeRows, RowsMade

_MODULE = "ppojob_rows"
_ANSWER_ROWS, _ANSWER_BYTES, _ANSWER_SECONDS = 256, 4 * 1024 * 1024, 1.0
"""An answer has at most so many rows, and is sent soon: a slow function is not a dead one."""
_ROWS: Final = "rows as dictionaries of what JSON has"

# Taken before the file is imported, which may put something else in their place.
_decode: Final = msgspec.msgpack.Decoder(MakeRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_dumps: Final = json.dumps


class _BadItemError(Exception):
    """What the function answered is no row, or no rows."""

    def __init__(self, got: str, why: str) -> None:
        self.got = got
        self.why = why
        super().__init__(f"{got}: {why}")


class _Program:
    """A user's function, and how far its rows were taken."""

    def __init__(self) -> None:
        self._rows: Iterator[object] = iter(())

    def make(self, request: MakeRows) -> RowsMade:
        """Import the file and call the function; answers no row yet."""
        Neighbours().enter(str(Path(request.path).resolve().parent))
        try:
            module = load_module(request.path, _MODULE, pod="controller")
        except UnusableModule as bad:
            return RowsMade([], bad.got, bad.why, bad.allowed)
        function = vars(module).get(request.function)
        if not callable(function):
            names = ", ".join(name for name, value in vars(module).items() if _is_own(value))
            why = f"the file has no such function; it has {names or 'none'}"
            return RowsMade([], request.function, why, "spec.data.train[].function: one of them")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            got, why = f"async def {request.function}", "it is async, and nothing awaits its rows"
            return RowsMade([], got, why, "a plain function, def")
        try:
            made = function(**msgspec.json.decode(request.arguments))
            self._rows = _items(made)
        except _BadItemError as bad:
            return RowsMade([], bad.got, bad.why, _ROWS)
        except BaseException as error:  # the file is the user's: it may even call sys.exit
            return _failed(error)
        return RowsMade([])

    def next(self) -> RowsMade:
        """Some more rows."""
        items: list[bytes] = []
        size, end = 0, time.monotonic() + _ANSWER_SECONDS
        while len(items) < _ANSWER_ROWS and size < _ANSWER_BYTES and time.monotonic() < end:
            try:
                items.append(_encoded(next(self._rows)))
            except StopIteration:
                break
            except _BadItemError as bad:
                return RowsMade(items, bad.got, bad.why, _ROWS)
            except BaseException as error:
                failed = _failed(error)
                return RowsMade(items, failed.got, failed.why, failed.allowed)
            size += len(items[-1])
        return RowsMade(items)


def _is_own(value: object) -> bool:
    return callable(value) and getattr(value, "__module__", "") == _MODULE


def _items(made: Any) -> Iterator[object]:
    """Of an iterable, or of a data set of PyTorch, which has a length and items by number."""
    if isinstance(made, Iterable):
        return iter(made)
    if not hasattr(made, "__len__"):
        raise _BadItemError(shown(made), "the function answers no rows")
    return (made[number] for number in range(len(made)))


def _encoded(row: object) -> bytes:
    if not isinstance(row, Mapping):
        raise _BadItemError(shown(row), "every item is one row")
    try:
        text = _dumps(dict(row), allow_nan=False, ensure_ascii=False, default=_plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _BadItemError("a row that JSON cannot hold", printable(str(error), 200)) from None


def _plain(value: Any) -> object:
    """What arrays and scalars of NumPy, PyTorch and pandas are as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _failed(error: BaseException) -> RowsMade:
    text, where = raised(error, __file__)
    return RowsMade([], text, where, "a function that makes its rows")


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    program = _Program()

    def answer(body: bytes) -> bytes:
        request = _decode(body)
        return _encode(program.make(request) if isinstance(request, MakeRows) else program.next())

    answer_requests(requests, answers, answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
