"""JSON objects in files of strangers: read strictly and in bounded memory."""

import json
from pathlib import Path

from ppojob_api.problem import Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.problems import ModelReason


class BadObject(Exception):  # noqa: N818  the object is bad
    """The text is no JSON object, or one with a key twice.

    Attributes:
        place: ``line:column``; empty where it is not known.
        got: what is there.
        why: what is wrong with it.
    """

    def __init__(self, got: str, why: str, place: str = "") -> None:
        self.got = got
        self.why = why
        self.place = place
        super().__init__(f"got {got}: {why}")


def parse_object(text: bytes) -> dict[str, Json]:
    """Parse a JSON object.

    Raises:
        BadObject: it is none.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise BadObject("no JSON", error.msg, f"{error.lineno}:{error.colno}") from None
    except UnicodeDecodeError as error:
        raise BadObject(f"byte {text[error.start]:#04x}", "it is not UTF-8") from None
    except RecursionError:
        raise BadObject("brackets in brackets", "they are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise BadObject("a number", str(error).partition(";")[0]) from None
    if not isinstance(value, dict):
        raise BadObject(shown(value), "it is not an object", "1:1")
    return value


def read_object(path: Path, *, max_bytes: int, reason: ModelReason) -> dict[str, Json] | Problem:
    """Read a file that holds a JSON object.

    Args:
        path: the file.
        max_bytes: a longer file is not read.
        reason: what its mistakes are called.

    Returns:
        The object, or what is wrong with the file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        return unreadable(path, error)
    if len(text) > max_bytes:
        size = f"{path.stat().st_size} bytes"
        return Problem(str(path), size, "too long to be read", f"at most {max_bytes}", reason)
    try:
        return parse_object(text)
    except BadObject as bad:
        where = f"{path}:{bad.place}" if bad.place else str(path)
        return Problem(where, bad.got, bad.why, "a JSON object", reason)


def unreadable(path: Path, error: OSError) -> Problem:
    """The problem of a file that the system does not give."""
    got = "a link to nothing" if path.is_symlink() and not path.exists() else "no bytes"
    why = error.strerror or type(error).__name__
    return Problem(str(path), got, why, "a file that can be read", ModelReason.UNREADABLE)


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, value in pairs:
        if name in found:
            raise BadObject(shown(name), "the key is there twice")
        found[name] = value
    return found
