"""Whether an object that is there is the object that must be there. Pure."""

import hashlib
import json

from ppojob_operator.state import Manifest

_IDENTITY = frozenset({"apiVersion", "kind"})


def digest(manifest: Manifest) -> str:
    """SHA-256 of an object's canonical JSON."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def covers(actual: Manifest, wanted: Manifest) -> bool:
    """Whether everything that we want is so, whatever else the API server has filled in.

    The content of an immutable object is not compared: its name stands for it.
    """
    skipped = _IDENTITY | ({"data"} if wanted.get("immutable") else frozenset())
    return all(
        _covers(actual.get(key), value) for key, value in wanted.items() if key not in skipped
    )


def _covers(actual: object, wanted: object) -> bool:
    # Most parts are the very same, which is soon told; only the others are gone through.
    if actual == wanted:
        return True
    # Plain JSON on both sides; the abstract types would take three times as long to ask for.
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return not wanted
        return all(_covers(actual.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(actual, list) or len(actual) != len(wanted):
            return not wanted and not actual
        return all(map(_covers, actual, wanted))
    # The API server leaves out what is empty or false.
    return actual is None and not wanted
