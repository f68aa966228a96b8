"""Tools that a service answers: a real server on this machine, called from a real process."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from golden_lines import assert_lines, read_lines

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.http_calls import CallFailed, json_or_text, post
from ppojob_trainer.tools.http_tool import returned
from ppojob_trainer.tools.pool import Made, ToolPool, Wanted

EXPECTED = read_lines(Path(__file__).parent / "bad_services.txt")
SILENT = "no answer at all"
JSON = "application/json"


class Service(ThreadingHTTPServer):
    """Answers `(status, type, body)` in turn, the last one for ever; keeps what it was asked."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, str, str | bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, str | None]] = []
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/population"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = min(len(self.server.asked), len(self.server.answers) - 1)
        self.server.asked.append((body, self.headers["Authorization"]))
        status, kind, said = self.server.answers[number]
        if kind == SILENT:
            self.server.is_over.wait(60)
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(said if isinstance(said, bytes) else said.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(*answers: tuple[int, str, str | bytes]) -> Service:
        started.append(Service(*answers))
        return started[-1]

    yield start
    for service in started:
        service.is_over.set()
        service.shutdown()
        service.server_close()


def agent(url: str, **more: Any) -> AgentSpec:
    source = {"url": url} | more.pop("source", {})
    parameters = {"type": "object", "properties": {"town": {"type": "string"}}}
    one = {"name": "lookup", "description": "d", "parameters": parameters, "source": source}
    return AgentSpec.model_validate({"tools": [one | more], "maxToolResponseCharacters": 100})


def ask(pool: ToolPool, arguments: str = '{"town": "Ulm"}') -> Made:
    return pool.start([Wanted("lookup", arguments, b"{}", "i")]).result()[0]


@pytest.mark.processes
def test_a_call_is_a_post_of_its_arguments(serve, monkeypatch) -> None:
    service = serve(
        (200, "text/plain", "120,000 \u00e9"),
        (200, f"{JSON}; charset=utf-8", '{"text": "more", "reward": 0.5}'),
        (503, "text/plain", "busy"),
        (200, JSON, '{"people": [1, "canary"]}'),
        (404, "text/plain", "no such town"),
    )
    monkeypatch.setenv("KEY", "canary\n")
    with ToolPool(agent(service.url, source={"keyVariable": "KEY"}), variables=("KEY",)) as pool:
        first = ask(pool)
        assert (first.text, first.reward, first.failure) == ("120,000 \u00e9", 0.0, "")
        assert service.asked == [({"town": "Ulm"}, "Bearer canary")]
        second = ask(pool)
        assert (second.text, second.reward) == ("more", 0.5)
        again = ask(pool)
        assert (again.text, again.failure) == ('{"people": [1, "***"]}', "")
        assert len(service.asked) == 4, "a busy service is asked again"
        refused = ask(pool)
        assert refused.failure == "raised"
        assert refused.text.startswith("Error: lookup failed: CallFailed: http://")
        wrong = ask(pool, '{"town": 7}')
        assert wrong.failure == "arguments"
        assert len(service.asked) == 5, "what does not fit the schema is not asked"


@pytest.mark.processes
def test_a_service_that_says_nothing_or_too_much(serve) -> None:
    silent = serve((200, SILENT, ""))
    with ToolPool(agent(silent.url, timeLimitSeconds=0.5)) as pool:
        made = ask(pool)
        assert made.failure == "timeout"
        assert made.seconds < 10
    long = serve((200, "text/plain", "x" * 1_000), (200, "text/plain", b"x" * (16 * 1024**2 + 1)))
    with ToolPool(agent(long.url)) as pool:
        assert len(ask(pool).text) == 100 + len("...(truncated)...")
        made = ask(pool)
        assert made.failure == "raised"
        assert made.text.startswith("Error: lookup failed: CallFailed: ")


def test_how_much_a_service_may_say(serve) -> None:
    service = serve((200, "text/plain", b"x" * (16 * 1024**2 + 1)))
    with pytest.raises(CallFailed, match="answered more than 16777216 bytes"):
        post(service.url, {}, json_or_text, retries=0)
    broken = serve((200, JSON, '{"a": '))
    with pytest.raises(CallFailed, match="answered no JSON: "):
        post(broken.url, {}, json_or_text, retries=0)


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        ("a", "a"),
        ({"text": "a"}, ("a", None)),
        ({"text": "a", "reward": 1}, ("a", 1)),
        ({"text": 1}, '{"text": 1}'),
        ({"text": "\u00e9", "id": 7}, '{"text": "\u00e9", "id": 7}'),
        ({"reward": 1}, '{"reward": 1}'),
        ([1, True], "[1, true]"),
        (None, "null"),
    ],
)
def test_what_a_service_may_answer(answer: Any, made: object) -> None:
    assert returned(answer) == made


@pytest.mark.processes
@pytest.mark.parametrize("case", EXPECTED)
def test_services_that_cannot_be_asked(case: str) -> None:
    wrong = {
        "user info": agent("http://me:secret@a/"),
        "no host": agent("http:///tools"),
        "no key": agent("http://a/", source={"keyVariable": "ABSENT"}),
    }
    with pytest.raises(ConfigError) as refused:
        ToolPool(wrong[case])
    assert_lines(list(refused.value.problems), EXPECTED[case])
