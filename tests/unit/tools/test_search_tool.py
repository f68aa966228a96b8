"""Search in a corpus, as a tool in a real process."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from golden_lines import assert_lines, read_lines

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.pool import ToolPool, Wanted

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_searches.txt")
NAMES = ("Ulf", "Ada", "Bo", "Ulf and Bo")
WRONG: dict[str, dict[str, Any]] = {
    "both": {"index": "FOLDER/index", "url": "http://127.0.0.1:1/retrieve"},
    "neither": {"topk": 3},
    "no folder": {"index": "FOLDER/none"},
    "folder of something else": {"index": "FOLDER"},
    "index that is a number": {"index": 7},
    "no passages": {"index": "FOLDER/index", "topk": 0},
    "passages that are no number": {"index": "FOLDER/index", "topk": True},
    "setting that there is not": {"index": "FOLDER/index", "depth": 3},
    "url of nobody": {"url": "retriever:8000"},
    "damaged index": {"index": "FOLDER/damaged"},
}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    lines = [
        {"id": str(n), "contents": f'"{name}"\n{name} lives in town {n}.'}
        for n, name in enumerate(NAMES)
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_index(corpus, tmp_path / "index", encoder=None, tell=lambda *_: None)
    return tmp_path / "index"


def agent(config: dict[str, Any]) -> AgentSpec:
    return AgentSpec.model_validate({"tools": [{"name": "search", "config": config}]})


def ask(pool: ToolPool, query: str) -> ToolAnswer:
    return pool.start([Wanted("search", json.dumps({"query": query}), b"{}", "i")]).result()[0]


def test_an_index(index: Path) -> None:
    with ToolPool(agent({"index": str(index), "topk": 2})) as pool:
        found = ask(pool, "Ulf")
        assert (found.failure, found.reward) == ("", 0.0)
        assert found.text == (
            'Doc 1(Title: "Ulf") Ulf lives in town 0.\n'
            'Doc 2(Title: "Ulf and Bo") Ulf and Bo lives in town 3.\n'
        )
        assert [ask(pool, "Ulf").text, ask(pool, "nobody").text] == [found.text, ""]
        assert ask(pool, "").failure == ""


class _Service(BaseHTTPRequestHandler):
    """Search-R1's `/retrieve`, which knows one document; it is away for the query `gone`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        contents = f'"{asked["queries"][0]}"\n{asked["topk"]} wanted'
        body = json.dumps({"result": [[{"document": {"contents": contents}, "score": 1.0}]]})
        self.send_response(404 if "gone" in contents else 200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_service() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        with ToolPool(agent({"url": url})) as pool:
            assert ask(pool, "Ada").text == 'Doc 1(Title: "Ada") 3 wanted\n'
            away = ask(pool, "gone")
            assert away.failure == "raised"
            assert away.text.startswith("Error: search failed: RetrievalFailed: ")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("case", EXPECTED)
def test_searches_that_cannot_be_made(case: str, index: Path, tmp_path: Path) -> None:
    if case == "damaged index":
        index = index.rename(tmp_path / "damaged")
        passages = index / "passages.jsonl"
        passages.write_bytes(passages.read_bytes()[:-1])
    config = json.loads(json.dumps(WRONG[case]).replace("FOLDER", str(tmp_path)))
    with pytest.raises(ConfigError) as refused:
        ToolPool(agent(config))
    assert_lines(
        [line.replace(str(tmp_path), "FOLDER") for line in refused.value.problems], EXPECTED[case]
    )


def test_every_case_has_its_lines() -> None:
    assert set(WRONG) == set(EXPECTED)
