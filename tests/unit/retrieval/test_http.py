import json
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from answering_service import Service, services

from ppojob_trainer.errors import ConfigError, RetrievalFailed
from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.retrieval.http_retriever import HttpRetriever
from ppojob_trainer.retrieval.http_server import MAX_REQUEST_BYTES, retrieve_server
from ppojob_trainer.retrieval.index import IndexRetriever, open_index
from ppojob_trainer.retrieval.passages import Passage

DOCUMENTS = [{"id": str(n), "contents": f'"Town {n}"\nRiver {n % 4}\nbridge'} for n in range(12)]


@pytest.fixture
def index(tmp_path: Path, write_corpus) -> Iterator[IndexRetriever]:
    build_index(write_corpus(DOCUMENTS), tmp_path / "i", encoder=None, on_progress=lambda *_: None)
    with open_index(tmp_path / "i") as opened:
        yield opened


@pytest.fixture
def port(index: IndexRetriever) -> Iterator[int]:
    with closing(retrieve_server(index, "127.0.0.1", 0, topk=3)) as server:
        server.start()
        yield server.port


def post(port: int, body: bytes, path: str = "/retrieve", **headers: str) -> tuple[int, object]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def ask(port: int, **request: object) -> tuple[int, object]:
    return post(port, json.dumps(request).encode())


def test_the_answer_has_search_r1s_form(port: int, index: IndexRetriever) -> None:
    status, answer = ask(port, queries=["town 7", "river"], topk=2, return_scores=True)
    expected = [
        [{"document": {"id": one.id, "contents": one.contents}, "score": one.score} for one in each]
        for each in index.search(["town 7", "river"], 2)
    ]
    assert (status, answer) == (200, {"result": expected})
    assert answer["result"][0][0]["document"] == DOCUMENTS[7]


def test_without_scores_documents_stand_alone_and_topk_is_the_servers(port: int) -> None:
    for request in ({}, {"topk": None}, {"topk": 0}):
        status, answer = ask(port, queries=["town 7"], **request)
        assert (status, len(answer["result"][0])) == (200, 3)
        assert answer["result"][0][0] == DOCUMENTS[7]
    assert ask(port, queries=[]) == (200, {"result": []})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Input data was truncated"),
        (b"queries", "JSON is malformed"),
        (b'{"queries": "town"}', "Expected `array`, got `str` - at `$.queries`"),
        (b'{"topk": 3}', "missing required field `queries`"),
        (b'{"queries": [], "topk": -1}', "`int` >= 0"),
        (b'{"queries": [], "topk": 1001}', "`int` <= 1000"),
        (b'{"queries": ["\xff"]}', "invalid start byte"),
    ],
)
def test_what_is_no_question_is_told(body: bytes, why: str, port: int) -> None:
    status, answer = post(port, body)
    assert status == 422
    assert f"got {len(body)} bytes: " in answer["detail"]
    assert why in answer["detail"]


def test_other_places_and_sizes(port: int) -> None:
    assert post(port, b"{}", "/search")[0] == 404
    assert post(port, b"", **{"Content-Length": str(MAX_REQUEST_BYTES + 1)})[0] == 413
    assert post(port, b"", **{"Content-Length": "many"})[0] == 411
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"


def test_a_client_finds_what_the_index_finds(port: int, index: IndexRetriever) -> None:
    queries = [f"town {n} river {n % 3}" for n in range(40)]
    with closing(HttpRetriever(f"http://127.0.0.1:{port}/retrieve")) as client:
        assert client.search(queries, 5) == index.search(queries, 5)
        assert client.search([], 5) == []
        assert client.search(["town 1"], 0) == [[]]


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    soon = {"Retry-After": "0"}
    with services("/retrieve") as start:
        yield lambda *answers: start(*((status, body, soon) for status, body in answers))


# A document as Search-R1's own server for words gives it: title and text again, and no id.
OTHERS = {"document": {"title": "T", "text": "a", "contents": '"T"\na'}, "score": 2.5}


def test_each_query_is_a_request_of_its_own_and_asked_again_where_a_service_is_busy(serve) -> None:
    service = serve((503, {}), (200, {"result": [[OTHERS] * 5]}))
    with closing(HttpRetriever(service.url)) as client:
        (one, two) = client.search(["a", "b"], 3)
    assert len(one) == len(two) == 3
    assert one[0] == Passage("", '"T"\na', 2.5)
    asked = [body["queries"] for _, body, _ in service.asked]
    assert sorted(asked) in ([["a"], ["a"], ["b"]], [["a"], ["b"], ["b"]])
    assert all((body["topk"], body["return_scores"]) == (3, True) for _, body, _ in service.asked)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, b"out of memory"), "/retrieve answered 500: out of memory (4 attempts)"),
        ((422, {"detail": "no"}), '/retrieve answered 422: {"detail": "no"}'),
        ((200, b"<html>"), "/retrieve answered no JSON: <html>"),
        ((200, {"answer": []}), "gave an invalid answer: Object missing required field `result`"),
        ((200, {"result": [[{"document": {}, "score": 1}]]}), "required field `contents`"),
        ((200, {"result": []}), "/retrieve returned 0 lists for one query"),
    ],
)
def test_what_is_wrong_with_a_service_is_one_line(answer, why, serve, monkeypatch) -> None:
    monkeypatch.setattr("ppojob_trainer.http_calls._FIRST_WAIT_SECONDS", 0.0)
    client = HttpRetriever(serve(answer).url)
    with closing(client), pytest.raises(RetrievalFailed) as raised:
        client.search(["a"], 3)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"retriever: got url .*: not the URL of a service; http:"
    ):
        HttpRetriever("127.0.0.1:8000")
