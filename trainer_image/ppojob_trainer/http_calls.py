"""JSON over HTTP with bounded retries, for reward functions, tools and retrievers.

Errors are one line, without the key.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ppojob_api.contract import VARIABLES_OF_CODE
from ppojob_api.problem import printable, shown
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import BadInput
from ppojob_trainer.json_value import Json

if TYPE_CHECKING:
    from http.client import HTTPMessage, HTTPResponse
    from urllib.request import OpenerDirector

RETRIES = 3
ATTEMPT_SECONDS = 30.0
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_LONGEST_SECONDS = 31_536_000.0
_MAX_ANSWER_BYTES = 16 * 1024**2
_MAX_ERROR_BYTES = 4_096
_SHOWN_CHARACTERS = 200
_CODE: Final[Mapping[RoleName, tuple[str, str]]] = {
    "reward": ("reward functions", "key_variable"),
    "tools": ("tools", "keyVariable"),
}
"""By role: whose code makes the calls, and the name of the setting with the key's variable."""


class CallFailed(Exception):  # noqa: N818
    """The service did not give a valid answer."""


def endpoint_problem(url: str, key_variable: str, *, role: RoleName = "reward") -> BadInput | None:
    """Check an endpoint and the environment variable with its key (empty for none)."""
    code, key_name = _CODE[role]
    if "@" in url.partition("://")[2].partition("/")[0]:
        return BadInput("url with user info", "logs would show it", key_name)
    if not _is_address(url):
        return BadInput(
            f"url {shown(url)}", "not the URL of a service", "http://... or https://..."
        )
    if not key_variable:
        return None
    if not (key := _key(key_variable)):
        return BadInput(
            f"{key_name} {shown(key_variable)}",
            f"{code} see no such variable",
            f"one of spec.pods[].env of the role {role}; with ppojob run, one that "
            f"{VARIABLES_OF_CODE[role]} names",
        )
    if not key.isprintable() or max(key) > "\xff":
        why = "its value holds characters that a header cannot carry"
        return BadInput(f"{key_name} {shown(key_variable)}", why, "printable ones of Latin-1")
    return None


def longest_seconds(_program_seconds: float, arguments: Mapping[str, Json]) -> float:
    """Return the maximum duration of a call with all retries and pauses."""
    retries = arguments.get("retries", RETRIES)
    attempt = arguments.get("attempt_seconds", ATTEMPT_SECONDS)
    if not isinstance(retries, int) or not isinstance(attempt, int | float):
        return 0.0  # refused by the check of the arguments
    return min((retries + 1) * attempt + retries * _LONGEST_WAIT_SECONDS, _LONGEST_SECONDS)


def _json_of(_: "HTTPMessage", body: bytes) -> Json:
    decoded: Json = json.loads(body)
    return decoded


def json_or_text(answer: "HTTPMessage", body: bytes) -> Json:
    """Decode an answer as JSON if its `Content-Type` says so (or ValueError), else as text."""
    kind = answer.get_content_type()
    if kind == "application/json" or kind.endswith("+json"):
        return _json_of(answer, body)
    return body.decode(errors="replace")


def post_json(
    url: str,
    body: Json,
    *,
    read: Callable[["HTTPMessage", bytes], Json] = _json_of,
    key_variable: str = "",
    retries: int = RETRIES,
    attempt_seconds: float = ATTEMPT_SECONDS,
) -> Json:
    """Post a JSON body and return the decoded answer.

    Failed connections, timeouts and temporary statuses (429, 503, ...) are retried after 0.5, 1,
    2 ... s, or after ``Retry-After``; CallFailed if no attempt got a valid answer. `read` decodes
    headers and body, and raises ValueError if they are invalid. `key_variable` is an environment
    variable with the bearer token, empty for none.
    """
    from http.client import HTTPException  # slow to import, and few jobs call a service
    from urllib.error import HTTPError
    from urllib.request import Request

    headers = {"Content-Type": "application/json"}
    if key := _key(key_variable):
        headers["Authorization"] = f"Bearer {key}"
    request = Request(url, json.dumps(body).encode(), headers, method="POST")
    for attempt in range(retries + 1):
        wait = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
        try:
            with _opener().open(request, timeout=attempt_seconds) as answer:
                return _read(url, answer, read, key)
        except HTTPError as error:
            problem = f"{url} answered {error.code}"
            try:
                with error:
                    problem += f": {_shown(error.read(_MAX_ERROR_BYTES), key)}"
            except (OSError, HTTPException):
                problem += ", and not to its end"
            if error.code not in _RETRIED:
                raise CallFailed(problem) from None
            # The other form of the header, a date, is ignored.
            if (seconds := error.headers.get("Retry-After", "")).isdecimal():
                wait = min(float(seconds), _LONGEST_WAIT_SECONDS)
        except (OSError, HTTPException) as error:
            reason = _shown(str(getattr(error, "reason", None) or error).encode(), key)
            problem = f"{url} gave no answer: {reason or type(error).__name__}"
        except ValueError:  # its text may hold the key
            raise CallFailed(f"{url} cannot be called: no request can hold url or key") from None
        if attempt < retries:
            time.sleep(wait)
    raise CallFailed(f"{problem} ({retries + 1} attempts)")


@functools.cache
def _opener() -> "OpenerDirector":
    """Return an opener that follows no redirects, which could send the key to another host."""
    from urllib import request

    opener = request.OpenerDirector()
    opener.add_handler(request.ProxyHandler())
    opener.add_handler(request.HTTPHandler())
    opener.add_handler(request.HTTPSHandler())
    opener.add_handler(request.HTTPDefaultErrorHandler())
    opener.add_handler(request.HTTPErrorProcessor())
    return opener


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_text = url.isascii() and url.isprintable() and " " not in url
    return is_whole and is_text and url.startswith(("http://", "https://"))


def _key(variable: str) -> str:
    """Return the key without surrounding white space, such as a final newline of a Secret."""
    return os.environ.get(variable, "").strip() if variable else ""


def _read(
    url: str, answer: "HTTPResponse", read: Callable[["HTTPMessage", bytes], Json], key: str
) -> Json:
    body = answer.read(_MAX_ANSWER_BYTES + 1)
    if len(body) > _MAX_ANSWER_BYTES:
        raise CallFailed(f"{url} answered more than {_MAX_ANSWER_BYTES} bytes")
    try:
        value = read(answer.headers, body)
    except (ValueError, RecursionError):
        raise CallFailed(f"{url} answered no JSON: {_shown(body, key)}") from None
    return _without(key, value) if key else value


def _shown(body: bytes, key: str) -> str:
    """Return the beginning of a body, without the key."""
    text = body[:_MAX_ERROR_BYTES].decode(errors="replace")
    return printable(text.replace(key, "***") if key else text, _SHOWN_CHARACTERS)


def _without(key: str, value: Json) -> Json:
    match value:
        case str():
            return value.replace(key, "***")
        case list():
            return [_without(key, each) for each in value]
        case dict():
            return {name: _without(key, each) for name, each in value.items()}
    return value
