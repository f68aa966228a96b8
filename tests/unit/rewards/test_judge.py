import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from answering_service import STALLS, TRICKLES, Answer, Service, services
from golden_lines import assert_lines, read_lines
from tiny_models import save_tokenizer

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.http_calls import CallFailed, endpoint_problem, post_json
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.judge import http_score, judge
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem, Row
from ppojob_trainer.rewards.wire import Judge

EXPECTED = read_lines(Path(__file__).parent / "bad_functions.txt")


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    with services("/v1/chat/completions") as start:
        yield start


def said(text: str) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


def judged(service: Service, response: str = "x", **arguments: object) -> dict[str, Json]:
    given = {"url": service.url, "model": "m", "retries": 0} | arguments
    row = Row("mine", {"question": "Why?", "deep": {"a": 1}})
    return judge(response, "truth", row, **given)  # type: ignore[arg-type]


def test_the_judge_is_asked_once_and_its_last_number_counts(serve) -> None:
    service = serve(said("Score: 2? No.\nScore: 7"))
    prompt = "{data_source} {extra_info.question} {response} {ground_truth} {extra_info.deep} x^{x}"
    wanted = {"score": 0.7, "judge": "Score: 2? No.\nScore: 7"}
    for _ in range(2):
        assert judged(service, "I say {ground_truth}", prompt=prompt, max_tokens=9) == wanted
    ((path, body, key),) = service.asked
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "m",
        "messages": [
            {"role": "user", "content": 'mine Why? I say {ground_truth} truth {"a": 1} x^{x}'}
        ],
        "max_tokens": 9,
        "temperature": 0.0,
    }
    assert key is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 10", 1.0),
        ("score = 0", 0.0),
        ("**Score:** 7.5", 0.75),
        ("**Final score** = 3", 0.3),
        ("Score (0-10): 8", 0.8),
        ("score: 8/10\nA score of 2 would be too low.", 0.8),
        ("It is good.\n- Score:\n**9**", 0.9),
    ],
)
def test_numbers_are_read_as_judges_write_them(serve, text: str, score: float) -> None:
    assert judged(serve(said(text)), text)["score"] == score


@pytest.mark.parametrize("name", ["ground_truth", "extra_info.q", "extra_info.none"])
def test_a_row_without_what_the_prompt_names_is_not_judged(serve, name: str) -> None:
    service = serve(said("Score: 1"))
    given = {"url": service.url, "model": "m", "prompt": f"{{response}} {{{name}}}"}
    with pytest.raises(CallFailed, match=f"the prompt names {{{name}}}, which the row lacks"):
        judge("x", None, Row("mine", {"none": None}), **given)
    assert not service.asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said("It is right."), "the judge gave no number instead of 0 to 10"),
        (said("Score: 11"), "the judge gave the number 11 instead of"),
        (said("Score: -1"), "the judge gave the number -1 instead of"),
        ((200, "<html>"), "answered no JSON: <html>"),
        ((200, "{}"), "answered no chat completion: {}"),
        ((200, b"\xff\xfe"), "answered no JSON: "),
        ((401, "no key"), "answered 401: no key"),
        ((404, ""), "answered 404"),
        ((302, "", {"Location": "http://127.0.0.1:1/stolen"}), "answered 302"),
    ],
)
def test_what_is_no_score_is_told_and_not_asked_again(serve, answer: Answer, why: str) -> None:
    service = serve(answer, said("Score: 1"))
    with pytest.raises(CallFailed) as failed:
        judged(service, why, retries=3)
    assert why in str(failed.value)
    assert len(service.asked) == 1


def test_busy_services_are_asked_again_for_a_while(serve, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    service = serve((503, "busy"), (429, "slow down", {"Retry-After": "3"}), (200, "[1]"))
    assert post_json(service.url, {}, retries=2) == [1]
    assert waits == [0.5, 3.0]
    busy = serve((500, "oh"))
    with pytest.raises(CallFailed, match=r"answered 500: oh \(2 attempts\)"):
        post_json(busy.url, {}, retries=1)
    assert len(busy.asked) == 2


def test_silence_and_nobody_are_told(serve, monkeypatch) -> None:
    monkeypatch.setattr("ppojob_trainer.http_calls._FIRST_WAIT_SECONDS", 0.0)
    service = serve((0, ""))
    with pytest.raises(CallFailed, match=r"gave no answer: timed out \(2 attempts\)"):
        post_json(service.url, {}, retries=1, attempt_seconds=0.2)
    with pytest.raises(CallFailed, match=r"gave no answer: .*refused"):
        post_json("http://127.0.0.1:9/", {}, retries=0)
    stalls = serve((503, STALLS), (200, "[1]"))  # a refusal that does not end
    assert post_json(stalls.url, {}, retries=1, attempt_seconds=0.2) == [1]


@pytest.mark.parametrize(
    "answer",
    [
        (401, "no: canary"),
        (401, "x" * 192 + "canary" + "y" * 10),
        (200, "canary"),
        (200, '{"said": ["canary"]}'),
        said("Score: canary"),
        (200, r'{"said": "can\u0061ry"}'),
    ],
)
def test_a_service_that_says_the_key_is_not_quoted(serve, monkeypatch, answer: Answer) -> None:
    monkeypatch.setenv("JUDGE_KEY", "canary\n")
    service = serve(answer)
    with pytest.raises(CallFailed) as failed:
        judged(service, str(answer), key_variable="JUDGE_KEY")
    assert "cana" not in str(failed.value)
    assert service.asked[0][2] == "Bearer canary"


def test_a_key_that_no_header_carries_is_not_told(serve, monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "can\nary")
    with pytest.raises(CallFailed, match="no request can hold url or key") as failed:
        post_json(serve((200, "1")).url, {}, key_variable="JUDGE_KEY")
    assert "ary" not in str(failed.value)
    for key in ("can\nary", "can\x7fary", "canary\u20ac"):
        monkeypatch.setenv("JUDGE_KEY", key)
        wrong = endpoint_problem("http://x/", "JUDGE_KEY")
        assert wrong is not None
        assert "can" not in wrong.got + wrong.allowed


@pytest.mark.parametrize(
    "url",
    ["http://", "http:///v1", "http://a b/", "http://h:pw@x/", "http://x:y/", "http://x/\u00e9",
     "http://[::1/", "http://x/\n", "ftp://x/", "//x/", ""],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    wrong = endpoint_problem(url, "")
    assert wrong is not None
    assert "pw" not in wrong.got
    assert endpoint_problem("https://x:8000/v1?a=@b", "") is None


def test_a_service_of_ones_own_sees_the_row(serve) -> None:
    service = serve((200, '{"score": 0.5, "why": "so"}'))
    found = http_score("x", ["truth"], Row("mine", {"a": 1}), url=service.url)
    assert found == {"score": 0.5, "why": "so"}
    assert service.asked[0][1] == {
        "data_source": "mine",
        "solution_str": "x",
        "ground_truth": ["truth"],
        "extra_info": {"a": 1},
    }


def spec(name: str, seconds: float = 5.0, **more: object) -> RewardSpec:
    settings = {"function": name, "timeLimitSeconds": seconds, "arguments": more}
    return RewardSpec.model_validate(settings)


@pytest.mark.processes
def test_the_key_is_sent_and_never_told(serve, monkeypatch, caplog) -> None:
    monkeypatch.setenv("JUDGE_KEY", "canary")
    service = serve(said("Score: 4"), (403, "forbidden"))
    one = spec("judge", url=service.url, model="m", key_variable="JUDGE_KEY", retries=0)
    with ScoringPool([one], variables=["JUDGE_KEY"]) as pool:
        (result,) = pool.score([RewardItem(0, "any", "x", "t")])
        with pytest.raises(RewardFailed) as failed:
            pool.score([RewardItem(1, "any", "y", "t")])
    assert (result.score, result.extras["judge"]) == (0.4, "Score: 4")
    assert [key for _, _, key in service.asked] == ["Bearer canary"] * 2
    assert "answered 403: forbidden" in str(failed.value)
    assert "canary" not in str(failed.value) + caplog.text


@pytest.mark.processes
def test_a_service_that_hangs_ends_with_the_time_limit(serve) -> None:
    service = serve((0, TRICKLES))
    started = time.monotonic()
    patient = {"seconds": 0.5, "url": service.url, "retries": 0, "attempt_seconds": 0.5}
    with (
        ScoringPool([spec("http_score", **patient)]) as pool,
        pytest.raises(RewardFailed, match="RewardTimeout: got no score after 1 s"),
    ):
        pool.score([RewardItem(0, "any", "x", None)])
    assert time.monotonic() - started < 30


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "given"),
    [
        ("a judge without a model", {"model": None}),
        ("a judge that nobody serves", {"url": None, "model": None}),
        ("a judge that is no service", {"url": "file:///etc/passwd"}),
        ("a judge without its key", {"key_variable": "NO_KEY"}),
        ("a judge that sees nothing", {"prompt": "Judge!"}),
        ("a pattern without a group", {"score_pattern": "[0-9]"}),
        ("a pattern that is none", {"score_pattern": "("}),
        ("a prompt with a misspelt field", {"prompt": r"{response} \boxed{x} {truth}"}),
        ("less than no retries", {"retries": -1}),
        ("no time at all", {"attempt_seconds": 0}),
        ("no best number", {"best": 0}),
        ("an answer of no tokens", {"max_tokens": 0}),
        ("a key in the manifest", {"key": "secret"}),
    ],
)
def test_wrong_arguments_are_told_at_the_start(case: str, given: dict[str, object]) -> None:
    told = {"url": "http://judge/v1/chat/completions", "model": "m"} | given
    if case == "no time at all":
        told.pop("model")
    name = "judge" if "model" in told else "http_score"
    with pytest.raises(ConfigError) as wrong:
        ScoringPool([spec(name, **{key: one for key, one in told.items() if one is not None})])
    assert_lines(str(wrong.value).splitlines(), EXPECTED[case])


PROXY = ("HTTP_PROXY", "http_proxy")
OWN = """
import json, os, urllib.request

def own(data_source, solution_str, ground_truth, extra_info, reward_router_address,
        reward_model_tokenizer):
    tokens = len(reward_model_tokenizer(solution_str)["input_ids"])
    body = {"model": os.environ["PPOJOB_JUDGE_MODEL"], "tokens": tokens}
    url = f"http://{reward_router_address}/v1/chat/completions"
    assert url == os.environ["PPOJOB_JUDGE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode())
    return json.loads(urllib.request.urlopen(request).read())["score"]
"""


@pytest.mark.processes
def test_the_job_s_own_judge_is_asked_by_the_scorer_and_by_functions_of_verl_s_form(
    serve, tmp_path: Path, monkeypatch
) -> None:
    """A function of one's own may also have the names with defaults; then it works without one."""
    for name in PROXY:  # it is asked on this machine, whatever proxy others are asked through
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    both = json.loads(said("Score: 5")[1]) | {"score": 3}
    service = serve((200, both))
    (tmp_path / "own.py").write_text(OWN)
    tokenizer = tmp_path / "judge"
    save_tokenizer(tokenizer)
    rewards = [
        RewardSpec(function="judge", arguments={"prompt": "{response}"}),
        RewardSpec(function="own", source={"path": str(tmp_path / "own.py")}),  # type: ignore[arg-type]
    ]
    own = Judge(service.url.removesuffix("/chat/completions"), str(tokenizer), 5.0)
    with ScoringPool(rewards, judge=own, variables=PROXY) as pool:
        (result,) = pool.score([RewardItem(0, "mine", "abc", "truth", {})])
    assert result.score == 0.5 + 3
    assert {body["model"] for _, body, _ in service.asked} == {str(tokenizer)}
    with pytest.raises(ConfigError, match="reward_router_address"):
        ScoringPool(rewards[1:])
