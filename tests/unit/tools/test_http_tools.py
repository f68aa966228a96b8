"""Tools that a service answers: a real server on this machine, called from a real process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from answering_service import Service, services
from golden_lines import assert_lines, read_lines

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.http_calls import CallFailed, json_or_text, post_json
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.http_tool import returned
from ppojob_trainer.tools.pool import ToolPool, Wanted

EXPECTED = read_lines(Path(__file__).parent / "bad_services.txt")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    with services("/population") as start:
        yield start


def agent(url: str, **more: Any) -> AgentSpec:
    source = {"url": url} | more.pop("source", {})
    parameters = {"type": "object", "properties": {"town": {"type": "string"}}}
    one = {"name": "lookup", "description": "d", "parameters": parameters, "source": source}
    return AgentSpec.model_validate({"tools": [one | more], "maxToolResponseCharacters": 100})


def ask(pool: ToolPool, arguments: str = '{"town": "Ulm"}') -> ToolAnswer:
    return pool.start([Wanted("lookup", arguments, b"{}", "i")]).result()[0]


@pytest.mark.processes
def test_a_call_is_a_post_of_its_arguments(serve, monkeypatch) -> None:
    service = serve(
        (200, "120,000 \u00e9", TEXT),
        (
            200,
            '{"text": "more", "reward": 0.5}',
            {"Content-Type": "application/json; charset=utf-8"},
        ),
        (503, "busy", TEXT),
        (200, '{"people": [1, "canary"]}', JSON),
        (404, "no such town", TEXT),
    )
    monkeypatch.setenv("KEY", "canary\n")
    with ToolPool(agent(service.url, source={"keyVariable": "KEY"}), variables=("KEY",)) as pool:
        first = ask(pool)
        assert (first.text, first.reward, first.failure) == ("120,000 \u00e9", 0.0, "")
        assert service.asked == [("/population", {"town": "Ulm"}, "Bearer canary")]
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
    silent = serve((0, ""))
    with ToolPool(agent(silent.url, timeLimitSeconds=0.5)) as pool:
        made = ask(pool)
        assert made.failure == "timeout"
        assert made.seconds < 10
    long = serve((200, "x" * 1_000, TEXT), (200, b"x" * (16 * 1024**2 + 1), TEXT))
    with ToolPool(agent(long.url)) as pool:
        assert len(ask(pool).text) == 100 + len("...(truncated)...")
        made = ask(pool)
        assert made.failure == "raised"
        assert made.text.startswith("Error: lookup failed: CallFailed: ")


def test_how_much_a_service_may_say(serve) -> None:
    service = serve((200, b"x" * (16 * 1024**2 + 1), TEXT))
    with pytest.raises(CallFailed, match="answered more than 16777216 bytes"):
        post_json(service.url, {}, read=json_or_text, retries=0)
    broken = serve((200, '{"a": ', JSON))
    with pytest.raises(CallFailed, match="answered no JSON: "):
        post_json(broken.url, {}, read=json_or_text, retries=0)


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
