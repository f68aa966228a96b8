from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from answering_service import Service, services
from golden_lines import assert_lines, read_lines
from tool_calls import ask, problems_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.http_calls import CallFailed, json_or_text, post_json
from ppojob_trainer.tools.custom import returned
from ppojob_trainer.tools.pool import ToolPool

EXPECTED = read_lines(Path(__file__).parent / "bad_services.txt")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json; charset=utf-8"}
ULM = '{"town": "Ulm"}'


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    with services("/population") as start:
        yield start


def agent(url: str, **more: Any) -> AgentSpec:
    source = {"url": url} | more.pop("source", {})
    parameters = {"type": "object", "properties": {"town": {"type": "string"}}}
    one = {"name": "lookup", "description": "d", "parameters": parameters, "source": source}
    return AgentSpec.model_validate({"tools": [one | more], "maxToolResponseCharacters": 100})


@pytest.mark.processes
def test_a_call_is_a_post_of_its_arguments(serve, monkeypatch) -> None:
    service = serve(
        (200, "120,000 \u00e9", TEXT),
        (200, '{"text": "more", "reward": 0.5}', JSON),
        (503, "busy", TEXT),
        (200, '{"people": [1, "canary"]}', JSON),
        (404, "no such town", TEXT),
        (200, "x" * 1_000, TEXT),
    )
    monkeypatch.setenv("KEY", "canary\n")
    with ToolPool(agent(service.url, source={"keyVariable": "KEY"}), variables=("KEY",)) as pool:
        first, second, again, refused, long = (ask(pool, "lookup", ULM) for _ in range(5))
        wrong = ask(pool, "lookup", '{"town": 7}')
    assert (first.text, first.reward, first.failure) == ("120,000 \u00e9", 0.0, "")
    assert service.asked[0] == ("/population", {"town": "Ulm"}, "Bearer canary")
    assert (second.text, second.reward) == ("more", 0.5)
    assert (again.text, again.failure) == ('{"people": [1, "***"]}', "")
    assert refused.failure == "raised"
    assert refused.text.startswith("Error: lookup failed: CallFailed: http://")
    assert len(long.text) == 100 + len("...(truncated)...")
    assert wrong.failure == "arguments"
    assert len(service.asked) == 6, "a busy service is asked again; what fits no schema is not"


@pytest.mark.processes
def test_a_service_that_says_nothing(serve) -> None:
    with ToolPool(agent(serve((0, "")).url, timeLimitSeconds=0.5)) as pool:
        made = ask(pool, "lookup", ULM)
    assert made.failure == "timeout"
    assert made.seconds < 10


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((200, b"x" * (16 * 1024**2 + 1), TEXT), "answered more than 16777216 bytes"),
        ((200, '{"a": ', JSON), "answered no JSON: "),
    ],
)
def test_what_a_service_may_not_say(serve, answer, why: str) -> None:
    with pytest.raises(CallFailed, match=why):
        post_json(serve(answer).url, {}, read=json_or_text, retries=0)


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
    assert_lines(problems_of(wrong[case]), EXPECTED[case])
