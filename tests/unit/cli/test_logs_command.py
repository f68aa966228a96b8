import threading

import pytest
from cluster_commands import JOB, PODS, call, job, pod, status_of
from fake_api_server import Answer, FakeApiServer, Request, listed, refusal
from operator_jobs import UID

from ppojob_cli.cluster import logs


def log_lines(word: str, seconds: range) -> list[str]:
    return [f"2026-01-02T03:04:{second:02}.5Z {word} {second}\n" for second in seconds]


def cut(lines: list[str]) -> list[str]:
    """The same text in other parts."""
    text = "".join(lines)
    return [text[i : i + 17] for i in range(0, len(text), 17)]


def test_pods_are_merged_and_pages_followed(server: FakeApiServer) -> None:
    def pods(request: Request) -> Answer:
        assert request.query["labelSelector"] == f"ppojob.dev/job-uid={UID}"
        if "continue" in request.query:
            return listed(pod("sum-reward-0", "reward"))
        first = pod("sum-controller-0", "controller")
        return Answer(value={"metadata": {"continue": "more"}, "items": [first]})

    even, odd = log_lines("even", range(0, 10, 2)), log_lines("odd", range(1, 10, 2))
    server.routes |= {
        f"GET {JOB}": Answer(value=job()),
        f"GET {PODS}": pods,
        # A line that is cut by the parts in which it comes is one line.
        f"GET {PODS}/sum-controller-0/log": lambda _: Answer(parts=iter(cut(even))),
        f"GET {PODS}/sum-reward-0/log": lambda _: Answer(parts=iter(odd)),
    }
    said = call("logs", "sum").splitlines()
    assert said[0] == "sum-controller-0    | even 0"
    assert said[1] == "sum-reward-0        | odd 1"
    assert [line.rpartition(" ")[2] for line in said] == list("0123456789")
    assert call("logs", "sum", "--tail", "3").splitlines() == said[-3:]
    assert server.requests[-1].query == {
        "container": "trainer",
        "timestamps": "true",
        "tailLines": "3",
    }


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, 'container "trainer" in pod "sum-reward-0" is waiting to start'),
        (404, "pod is gone"),
        (500, "no preferred addresses found"),
    ],
)
def test_a_pod_without_a_log_is_named(server: FakeApiServer, status: int, words: str) -> None:
    server.routes |= {
        f"GET {JOB}": Answer(value=job()),
        f"GET {PODS}": listed(pod("sum-controller-0", "controller"), pod("sum-reward-0", "reward")),
        f"GET {PODS}/sum-controller-0/log": Answer(parts=iter(log_lines("there", range(1)))),
        f"GET {PODS}/sum-reward-0/log": refusal(status, words),
    }
    assert call("logs", "sum").splitlines() == [
        f"sum-reward-0: no log: {words}",
        "sum-controller-0    | there 0",
    ]


def test_escapes_of_a_log_do_not_reach_the_terminal(server: FakeApiServer) -> None:
    line = "2026-01-02T03:04:05Z \x1b[2Jgone\n"
    server.routes |= {
        f"GET {JOB}": Answer(value=job()),
        f"GET {PODS}": listed(pod("sum-reward-0", "reward")),
        f"GET {PODS}/sum-reward-0/log": Answer(parts=iter([line])),
    }
    assert call("logs", "sum").endswith("| \\x1b[2Jgone\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--role", "rewrad"), '--role: got "rewrad": '),
        (("--since", "soon"), '--since: got "soon": '),
        (("--since", "0s"), '--since: got "0s": '),
        (("--previous",), 'NAME: got "sum": it is Pending and has no container that was'),
    ],
)
def test_wrong_options(server: FakeApiServer, options: tuple[str, ...], words: str) -> None:
    server.routes |= {f"GET {JOB}": Answer(value=job()), f"GET {PODS}": listed()}
    assert call("logs", "sum", *options, code=2).startswith(words)


def test_following_goes_on_behind_a_broken_stream(server: FakeApiServer, monkeypatch):
    """The second stream begins at the second of the last line, and nothing is told twice."""
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(logs, "_AGAIN_SECONDS", 0.1)
    lines, over_now = log_lines("line", range(6)), threading.Event()
    asked: list[Request] = []

    def log(request: Request) -> Answer:
        if "follow" not in request.query:
            return Answer(parts=iter(lines[:2]))
        asked.append(request)
        if len(asked) == 1:
            return Answer(parts=iter(lines[1:4]))
        over_now.set()
        return Answer(parts=iter(lines[3:]))

    def there(_: Request) -> Answer:
        return listed() if over_now.is_set() else listed(pod("sum-reward-0", "reward"))

    def job_now(_: Request) -> Answer:
        return Answer(value=job(status_of("Complete", "Succeeded") if over_now.is_set() else None))

    server.routes |= {
        f"GET {JOB}": job_now,
        f"GET {PODS}": there,
        f"GET {PODS}/sum-reward-0/log": log,
    }
    said = call("logs", "sum", "--follow").splitlines()
    assert [line.rpartition(" ")[2] for line in said] == list("012345")
    assert [one.query["sinceTime"] for one in asked[:2]] == [
        "2026-01-02T03:04:01Z",
        "2026-01-02T03:04:03Z",
    ]
