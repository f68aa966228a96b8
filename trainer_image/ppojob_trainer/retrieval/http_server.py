"""HTTP server of passages with Search-R1's interface: POST to ``/retrieve``, JSON in and out.

The request is ``{"queries": [...], "topk": 3, "return_scores": true}``; the answer
``{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}``, and without
``return_scores`` only the documents. The answer to an invalid request is ``{"detail": line}``.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.json_value import Json
from ppojob_trainer.metrics.page_server import PageHandler, PageServer
from ppojob_trainer.retrieval.passages import Passage, Retriever

MAX_REQUEST_BYTES: Final = 16 * 1024**2
MAX_TOPK: Final = 1_000
_ALLOWED: Final = '{"queries": ["..."], "topk": 3, "return_scores": true}'


class _Request(msgspec.Struct):
    queries: list[str]
    topk: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOPK)] | None = None
    return_scores: bool = False


class _BadRequestError(Exception):
    """Status and detail of the answer to an invalid request."""


def retrieve_server(retriever: Retriever, address: str, port: int, *, topk: int) -> PageServer:
    """Start a server of ``/retrieve``, and of ``/healthz`` for probes.

    One request at a time calls the retriever; `topk` is for requests without ``topk``, or with 0.
    Access is not restricted. Port 0 is a free one. Raises OSError if it cannot be bound.
    """
    lock = threading.Lock()

    class Handler(_Handler):
        def find(self, request: _Request) -> list[list[Passage]]:
            with lock:
                return retriever.search(request.queries, request.topk or topk)

    return PageServer(address, port, Handler)


class _Handler(PageHandler):
    find: Callable[[_Request], list[list[Passage]]]

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self.answer(b"ok\n", "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        status, answer = HTTPStatus.OK, dict[str, object]()
        try:
            request = self._request()
            found = self.find(request)
            answer["result"] = [
                [_as_json(one, request.return_scores) for one in each] for each in found
            ]
        except _BadRequestError as bad:
            status, answer["detail"] = bad.args
        except PPOJobError as error:
            status, answer["detail"] = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
        self.answer(msgspec.json.encode(answer), "application/json", status)

    def _request(self) -> _Request:
        if self.path != "/retrieve":
            why = f"got {shown(self.path)}: no such path; POST to /retrieve"
            raise _BadRequestError(HTTPStatus.NOT_FOUND, why)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            why = (
                f"Content-Length: got {shown(length)}: the length of the request in bytes; a number"
            )
            raise _BadRequestError(HTTPStatus.LENGTH_REQUIRED, why)
        if int(length) > MAX_REQUEST_BYTES:
            why = f"got {length} bytes: too large; at most {MAX_REQUEST_BYTES}"
            raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        try:
            return msgspec.json.decode(self.rfile.read(int(length)), type=_Request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"got {length} bytes: {error}; {_ALLOWED}"
            raise _BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, why) from None


def _as_json(passage: Passage, with_score: bool) -> Json:
    document: Json = {"id": passage.id, "contents": passage.contents}
    return {"document": document, "score": passage.score} if with_score else document
