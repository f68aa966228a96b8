"""Judge router: a local HTTP endpoint for reward functions, in front of all judge servers.

The digest of a request selects its server, so repetitions from any pod go to the same one. While
that server restarts, the request waits here. SGLang's `/generate` API, which some of verl's reward
functions call, is mapped to vLLM's.
"""

import hashlib
import json
import logging
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NamedTuple

from ppojob_trainer.metrics.page_server import PageHandler, PageServer

_log = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 10.0
_WAIT_SECONDS: Final = 0.5
_LARGEST_REQUEST: Final = 64 * 1024**2
_BAD_STATUS_RETRIES: Final = 3
"""Retries after a status of 500 and above, as of a server that has lost its engine."""
_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""An answer may take long, but a dead machine is detected."""

_SGLANG_PATH: Final = "/generate"
_COMPLETIONS_PATH: Final = "/v1/completions"
_VLLM_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "sampling_seed": "seed",
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos"),
            *("repetition_penalty", "frequency_penalty", "presence_penalty"),
            *("skip_special_tokens", "spaces_between_special_tokens"),
        )
    },
}
"""By the names of SGLang's sampling parameters."""
_SGLANG_DEFAULTS: Final = {"max_tokens": 128, "temperature": 1.0}


class _Answer(NamedTuple):
    body: bytes
    kind: str
    status: int


def server_of(path: str, body: bytes, count: int) -> int:
    """Return the index of the server of a request."""
    digest = hashlib.sha256(path.encode() + b"\n" + body).digest()
    return int.from_bytes(digest[:8], "big") % count


class JudgeRouter(PageServer):
    """A server on a free local port that forwards requests to the judge servers (host, port).

    `model` is its name there, which SGLang's requests do not have. A request waits `patience`
    seconds for a server that does not answer.
    """

    request_queue_size = 1_024  # functions may send requests for all rows at once

    def __init__(self, servers: Sequence[tuple[str, int]], *, model: str, patience: float) -> None:
        super().__init__("127.0.0.1", 0, _Handler)
        self._servers, self._model, self._patience = servers, model, patience

    def forward(self, method: str, path: str, body: bytes) -> _Answer:
        if path == _SGLANG_PATH:
            return self._generate(body)
        server = self._servers[server_of(path, body, len(self._servers))]
        return _forward_with_retries(server, method, path, body, self._patience)

    def _generate(self, body: bytes) -> _Answer:
        try:
            request = to_completion_request(body, self._model)
        except ValueError as problem:
            return _Answer(str(problem).encode(), "text/plain", HTTPStatus.BAD_REQUEST)
        answer = self.forward("POST", _COMPLETIONS_PATH, request)
        if answer.status != HTTPStatus.OK:
            return answer
        return answer._replace(body=to_sglang_response(answer.body))


class _Handler(PageHandler):
    server: JudgeRouter

    def do_GET(self) -> None:
        self.answer(*self.server.forward("GET", self.path, b""))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST_REQUEST:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return
        self.answer(*self.server.forward("POST", self.path, self.rfile.read(int(length))))


def _forward_with_retries(
    server: tuple[str, int], method: str, path: str, body: bytes, patience: float
) -> _Answer:
    """Return the server's answer, after a restart if needed; 503 if it never answers."""
    bad, deadline = 0, None
    while True:
        try:
            answer = _forward_once(server, method, path, body)
        except (OSError, HTTPException) as problem:
            deadline = deadline or time.monotonic() + patience
            if time.monotonic() > deadline:
                why = f"the judge at {server[0]}:{server[1]} does not answer: {problem!r}"
                _log.warning("%s", why)
                return _Answer(why.encode(), "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            bad, deadline = bad + 1, None
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or bad > _BAD_STATUS_RETRIES:
                return answer
        time.sleep(_WAIT_SECONDS)


def _forward_once(server: tuple[str, int], method: str, path: str, body: bytes) -> _Answer:
    connection = HTTPConnection(*server, timeout=_CONNECT_SECONDS)
    try:
        connection.connect()
        for option in _KEEP_ALIVE:
            connection.sock.setsockopt(*option)
        connection.sock.settimeout(None)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        kind = answer.headers.get("Content-Type", "application/json")
        return _Answer(answer.read(), kind, answer.status)
    finally:
        connection.close()


def to_completion_request(body: bytes, model: str) -> bytes:
    """Convert a request of SGLang's API for vLLM's server.

    Raises:
        ValueError: not one prompt, or unknown parameters.
    """
    try:
        request: Any = json.loads(body)
        sampling = request.get("sampling_params") or {}
        parameters = {_VLLM_NAMES[name]: value for name, value in sampling.items()}
        prompt = request["input_ids"] if "input_ids" in request else request["text"]
    except (ValueError, AttributeError, TypeError, KeyError) as problem:
        allowed = f"input_ids or text, and sampling_params of {', '.join(_VLLM_NAMES)}"
        raise ValueError(f"/generate: got {problem!r}: not in this version; {allowed}") from None
    converted = {
        **_SGLANG_DEFAULTS,
        **parameters,
        "model": model,
        "prompt": prompt,
        "return_token_ids": True,
    }
    return json.dumps(converted).encode()


def to_sglang_response(body: bytes) -> bytes:
    """Convert the answer of vLLM's server."""
    answer = json.loads(body)
    (choice,), usage = answer["choices"], answer["usage"]
    found = {
        "text": choice["text"],
        "output_ids": choice["token_ids"],
        "meta_info": {
            "id": answer["id"],
            "finish_reason": {"type": choice["finish_reason"]},
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
        },
    }
    return json.dumps(found).encode()
