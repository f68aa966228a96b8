"""JSON over HTTP to a service that scores: tried again where that may help, never without an end.

The time limit of a reward function ends all of it; what is wrong is raised in one line, without
the key.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from typing import IO, Any

from ppojob_api.problem import printable, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Wrong

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_LARGEST_ANSWER = 16 * 1024**2
_SHOWN_CHARACTERS = 200


class CallFailed(Exception):  # noqa: N818  it says what happened
    """The service gave no usable answer."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key to another host."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler())


def endpoint_problem(url: str, key_variable: str) -> Wrong | None:
    """Say what is wrong with an endpoint, before anything is started."""
    if not url.startswith(("http://", "https://")):
        return Wrong(f"url {shown(url)}", "no address of a service", "http://... or https://...")
    if key_variable and not os.environ.get(key_variable):
        return Wrong(
            f"key_variable {shown(key_variable)}",
            "reward functions see no such variable",
            "one of spec.pods[].env of the role reward; with ppojob run, one that "
            "PPOJOB_REWARD_VARIABLES names",
        )
    return None


def post_json(
    url: str, body: Json, *, key_variable: str = "", retries: int = 3, attempt_seconds: float = 30.0
) -> Json:
    """Post a JSON body and give back the JSON answer.

    Connections that fail, answers that take too long and statuses that say "later" (429, 503 and
    their kin) are tried again, after 0.5, 1, 2 ... s, or as long as ``Retry-After`` says.

    Args:
        url: of the service.
        body: of the request.
        key_variable: environment variable with the bearer token; empty for none.
        retries: attempts after the first.
        attempt_seconds: longest silence of the service.

    Raises:
        CallFailed: no attempt gave an answer, or it is no JSON.
    """
    headers = {"Content-Type": "application/json"}
    if key_variable:
        headers["Authorization"] = f"Bearer {os.environ[key_variable]}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    for attempt in range(retries + 1):
        wait = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
        try:
            with _OPENER.open(request, timeout=attempt_seconds) as answer:
                return _decoded(url, answer)
        except urllib.error.HTTPError as error:
            with error:
                text = printable(error.read(_SHOWN_CHARACTERS).decode(errors="replace"), 200)
            problem = f"{url} answered {error.code}: {text}"
            if error.code not in _AGAIN:
                raise CallFailed(problem) from None
            wait = _asked_wait(error.headers.get("Retry-After", ""), wait)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problem = f"{url} gave no answer: {printable(str(reason), 200) or type(error).__name__}"
        if attempt < retries:
            time.sleep(wait)
    raise CallFailed(f"{problem} ({retries + 1} attempts)")


def _decoded(url: str, answer: IO[bytes]) -> Json:
    body = answer.read(_LARGEST_ANSWER)
    try:
        decoded: Json = json.loads(body)
    except ValueError:
        shown = printable(body[:_SHOWN_CHARACTERS].decode(errors="replace"), _SHOWN_CHARACTERS)
        raise CallFailed(f"{url} answered no JSON: {shown}") from None
    return decoded


def _asked_wait(header: str, otherwise: float) -> float:
    """Seconds of a ``Retry-After``; its other form, a date, is not read."""
    return min(float(header), _LONGEST_WAIT_SECONDS) if header.isdecimal() else otherwise
