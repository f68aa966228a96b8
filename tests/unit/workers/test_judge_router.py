import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.error import HTTPError

import pytest
from answering_service import Answer, Service, services
from patience import eventually

from ppojob_api import contract
from ppojob_api.v1alpha1.rollout import JudgeSpec
from ppojob_trainer.workers.judge import exit_error, server_command
from ppojob_trainer.workers.judge_router import JudgeRouter

SAID: Answer = (200, {"said": "yes"})
PATH = "/v1/chat/completions"


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    with services(PATH) as start:
        yield start


@contextmanager
def door(*ports: int, patience: float = 30.0) -> Iterator[str]:
    servers = [("127.0.0.1", port) for port in ports]
    router = JudgeRouter(servers, model="/m", patience=patience)
    router.start()
    try:
        yield f"http://127.0.0.1:{router.port}{PATH}"
    finally:
        router.close()


def asked(url: str, question: object) -> object:
    request = urllib.request.Request(url, json.dumps(question).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_a_question_goes_to_the_same_server_whenever_it_is_asked(serve) -> None:
    one, other = serve(SAID), serve(SAID)
    with door(one.server_port, other.server_port) as url:
        for _ in range(2):
            for question in range(16):
                assert asked(url, question) == {"said": "yes"}
    of_each = [[body for _, body, _ in service.asked] for service in (one, other)]
    assert all(len(some) >= 4 for some in of_each)
    assert all(some[: len(some) // 2] == some[len(some) // 2 :] for some in of_each)


def test_what_was_under_way_is_asked_again_of_a_server_that_came_back(serve) -> None:
    """It says once more that it is dying, then nobody listens, then it serves again."""
    dying = serve((500, "EngineDeadError"))
    port = dying.server_port
    with door(port) as url:
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(asked(url, "x")))
        waiting.start()
        eventually(lambda: bool(dying.asked), 10)
        dying.shutdown()
        dying.server_close()
        serve(SAID, port=port)
        waiting.join(20)
    assert found == [{"said": "yes"}]


def test_a_refusal_is_passed_on_and_a_server_that_never_comes_is_told(serve) -> None:
    refusing = serve((400, {"error": "the prompt is too long"}))
    with door(refusing.server_port) as url, pytest.raises(HTTPError) as refused:
        asked(url, "x")
    assert (refused.value.code, b"too long" in refused.value.read()) == (400, True)
    assert len(refusing.asked) == 1
    with door(1, patience=0.1) as url, pytest.raises(HTTPError) as lost:
        asked(url, "x")
    assert lost.value.code == 503
    assert b"the judge at 127.0.0.1:1 does not answer" in lost.value.read()


def test_what_asks_sglang_is_answered_in_its_words(serve) -> None:
    choice = {"text": "yes", "token_ids": [7, 8], "finish_reason": "stop"}
    used = {"prompt_tokens": 3, "completion_tokens": 2}
    service = serve((200, {"id": "a", "choices": [choice], "usage": used}))
    sampling = {"max_new_tokens": 16, "temperature": 0.5}
    with door(service.server_port) as url:
        found = asked(
            url.replace(PATH, "/generate"), {"input_ids": [1, 2, 3], "sampling_params": sampling}
        )
        with pytest.raises(HTTPError) as refused:
            asked(url.replace(PATH, "/generate"), {"text": "x", "sampling_params": {"regex": "a"}})
    ((path, body, _),) = service.asked
    assert path == "/v1/completions"
    told = {"max_tokens": 16, "temperature": 0.5, "return_token_ids": True}
    assert body == {**told, "model": "/m", "prompt": [1, 2, 3]}
    meta = {"id": "a", "finish_reason": {"type": "stop"}, **used}
    assert found == {"text": "yes", "output_ids": [7, 8], "meta_info": meta}
    assert (refused.value.code, b"regex" in refused.value.read()) == (400, True)


def test_what_vllm_refuses_is_not_asked_again() -> None:
    judge = JudgeSpec(path="/m")
    (said,) = exit_error(judge, "exit status 2").problems
    assert said.startswith('spec.judge: got "/m": vLLM does not serve it so')
    for how in ("exit status 1", "signal SIGKILL"):
        assert isinstance(exit_error(judge, how), SystemExit)


def test_a_pod_of_gpus_is_one_server_over_all_of_them() -> None:
    judge = JudgeSpec(path="/m", dtype="bfloat16", max_tokens=4096, gpu_memory_share=0.8)
    _, _, module, *told = server_command(judge, address="10.0.0.7", gpus=4)
    assert module == "ppojob_trainer.rollout.vllm_server"
    assert {
        "--model=/m",
        "--host=10.0.0.7",
        f"--port={contract.PORT_JUDGE}",
        "--dtype=bfloat16",
        "--max-model-len=4096",
        "--tensor-parallel-size=4",
        "--gpu-memory-utilization=0.8",
    } <= {*told}
    assert "--enforce-eager" not in told
