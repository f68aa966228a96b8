"""Commands about a job on a cluster, over real HTTP to an API server of a few answers."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_api_server import TOKEN, Answer, FakeApiServer, Request, listed, refusal, serving
from operator_jobs import job_manifest

from ppojob_cli.main import main

JOBS = "/apis/ppojob.dev/v1alpha1/namespaces/lab/ppojobs"
JOB = f"{JOBS}/sum"
PODS = "/api/v1/namespaces/lab/pods"
EVENTS = "/api/v1/namespaces/lab/events"
UID = job_manifest()["metadata"]["uid"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving() as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(tmp_path / "kubeconfig")))
        yield fake


def call(*arguments: str, code: int = 0) -> str:
    result: Result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {**job_manifest(**spec), "status": status or {}}


def pod(name: str, slug: str, *, restarts: int = 0, ready: bool = True) -> dict[str, Any]:
    labels = {"ppojob.dev/job": "sum", "ppojob.dev/job-uid": UID, "ppojob.dev/role": slug}
    ready_word = "True" if ready else "False"
    return {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": "2026-01-02T03:00:00Z",
        },
        "spec": {},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready_word}],
            "containerStatuses": [{"restartCount": restarts}],
        },
    }


class TestTrouble:
    def test_no_kubeconfig(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        said = call("status", "sum", code=2)
        assert said.startswith("kubeconfig: got Invalid kube-config file. No configuration found:")
        assert said.count("\n") == 1

    @pytest.mark.parametrize("text", ["", "]", "[]", "clusters: 1", '{"contexts": []}'])
    def test_a_broken_kubeconfig(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
        said = call("status", "sum", code=2)
        assert said.startswith("kubeconfig: got ")
        assert said.count("\n") == 1

    def test_a_context_that_is_not_there(self, server: FakeApiServer) -> None:
        said = call("status", "sum", "--context", "elsewhere", code=2)
        assert said == (
            '--context: got "elsewhere": the kubeconfig has no such context; one of here\n'
        )

    def test_nobody_answers(self, server: FakeApiServer, tmp_path: Path) -> None:
        server.port = 1
        server.kubeconfig(tmp_path / "kubeconfig")
        said = call("status", "sum", code=2)
        assert said.startswith("cluster: got no answer from http://127.0.0.1:1: ")
        assert "refused; an API server that can be reached" in said
        assert said.count("\n") == 1

    @pytest.mark.parametrize(
        ("status", "words"),
        [
            (401, "the API server does not know you; log in again"),
            (403, 'user "me" cannot get it; ask for that right'),
            (500, 'user "me" cannot get it; try again'),
        ],
    )
    def test_a_refusal(self, server: FakeApiServer, status: int, words: str) -> None:
        server.routes[f"GET {JOB}"] = refusal(status, 'user "me" cannot get it')
        said = call("status", "sum", code=2)
        assert said.startswith(f"cluster: got {status}: {words}")
        assert said.count("\n") == 1

    def test_something_that_is_no_api_server(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(parts=iter(["<html>"]))
        assert "what answers is no API server" in call("status", "sum", code=2)

    def test_the_resource_is_not_installed(self, server: FakeApiServer) -> None:
        said = call("explain", "sum", code=2)
        assert said.startswith("cluster: got no resource ppojobs: PPOJob is not installed;")

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            ((), "namespace lab has no PPOJob; another --namespace"),
            (("sun", "addition"), "namespace lab has no such PPOJob; did you mean sun"),
            (("addition",), "namespace lab has no such PPOJob; one of addition"),
        ],
    )
    def test_no_such_job(self, server: FakeApiServer, names: tuple[str, ...], words: str) -> None:
        server.routes[f"GET {JOBS}"] = listed(*({"metadata": {"name": name}} for name in names))
        assert call("status", "sum", code=2) == f'NAME: got "sum": {words}\n'

    def test_a_status_of_another_version(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job({"phase": "Levitating"}))
        assert "it is of another version of PPOJob" in call("status", "sum", code=2)


def test_the_namespace_and_the_token_of_the_kubeconfig_are_used(server: FakeApiServer) -> None:
    other = JOB.replace("/lab/", "/elsewhere/")
    server.routes |= {f"GET {JOB}": Answer(value=job()), f"GET {other}": Answer(value=job())}
    call("status", "sum")
    call("status", "sum", "-n", "elsewhere")
    assert [one.path for one in server.requests] == [JOB, other]
    assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {TOKEN}"}


class TestLifecycle:
    def patched(self, server: FakeApiServer, **status: Any) -> list[Request]:
        """Let the job take a patch, and have the status that follows."""

        def take(request: Request) -> Answer:
            asked = request.body["spec"]["lifecycle"]
            changed = job(status, lifecycle=asked)
            changed["metadata"]["generation"] = 2
            server.routes[f"GET {JOB}"] = Answer(value=changed)
            return Answer(value=changed)

        server.routes[f"PATCH {JOB}"] = take
        return server.requests

    def test_suspend_is_one_merge_of_one_field(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job())
        asked = self.patched(server)
        assert call("suspend", "sum") == "sum: is to be suspended\n"
        patch = asked[-1]
        assert patch.body == {"spec": {"lifecycle": {"suspend": True}}}
        assert patch.headers["Content-Type"] == "application/merge-patch+json"
        assert patch.query == {"fieldManager": "kubectl-ppojob"}
        assert call("suspend", "sum") == "sum: suspended already\n"
        assert [one.method for one in asked] == ["GET", "PATCH", "GET"]

    def test_a_job_that_runs_is_resumed_already(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job())
        assert call("resume", "sum") == "sum: not suspended already\n"
        assert [one.method for one in server.requests] == ["GET"]

    def test_a_job_that_is_over_is_left_alone(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job(over("Complete", "Succeeded")))
        said = call("suspend", "sum", code=2)
        assert said == 'NAME: got "sum": it is over, Succeeded; a job that is not\n'

    def test_waiting_is_for_what_was_asked_and_not_for_what_was(
        self, server: FakeApiServer
    ) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job({"phase": "Running"}))
        self.patched(server, phase="Suspended", reason="Asked", observedGeneration=2)
        assert call("suspend", "sum", "--wait") == (
            "sum: is to be suspended\nsum: Suspended: Asked\n"
        )

    def test_a_job_that_fails_while_it_is_waited_for(self, server: FakeApiServer) -> None:
        server.routes[f"GET {JOB}"] = Answer(value=job({"phase": "Suspended"}, lifecycle=SUSPENDED))
        self.patched(server, **over("Failed", "Failed"))
        call("resume", "sum", "--wait", code=3)


SUSPENDED = {"suspend": True}


def over(condition: str, phase: str) -> dict[str, Any]:
    said = {
        "type": condition,
        "status": "True",
        "reason": "Done",
        "lastTransitionTime": "2026-01-02T03:04:00Z",
    }
    return {"phase": phase, "conditions": [said], "observedGeneration": 2}


def log_lines(word: str, seconds: range) -> list[str]:
    return [f"2026-01-02T03:04:{second:02}.5Z {word} {second}\n" for second in seconds]


class TestLogs:
    def test_pods_are_merged_and_pages_followed(self, server: FakeApiServer) -> None:
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
    def test_a_pod_without_a_log_is_named(
        self, server: FakeApiServer, status: int, words: str
    ) -> None:
        server.routes |= {
            f"GET {JOB}": Answer(value=job()),
            f"GET {PODS}": listed(
                pod("sum-controller-0", "controller"), pod("sum-reward-0", "reward")
            ),
            f"GET {PODS}/sum-controller-0/log": Answer(parts=iter(log_lines("there", range(1)))),
            f"GET {PODS}/sum-reward-0/log": refusal(status, words),
        }
        assert call("logs", "sum").splitlines() == [
            f"sum-reward-0: no log: {words}",
            "sum-controller-0    | there 0",
        ]

    def test_escapes_of_a_log_do_not_reach_the_terminal(self, server: FakeApiServer) -> None:
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
            (
                ("--role", "rewrad"),
                '--role: got "rewrad": there is no such role; one of controller',
            ),
            (("--since", "soon"), '--since: got "soon": it is no time; 45s, 5m or 1h30m'),
            (("--since", "0s"), '--since: got "0s": it is no time; 45s, 5m or 1h30m'),
            (("--previous",), 'NAME: got "sum": it is Pending and has no container that was'),
        ],
    )
    def test_wrong_options(
        self, server: FakeApiServer, options: tuple[str, ...], words: str
    ) -> None:
        server.routes |= {f"GET {JOB}": Answer(value=job()), f"GET {PODS}": listed()}
        assert call("logs", "sum", *options, code=2).startswith(words)

    def test_following_goes_on_behind_a_broken_stream(self, server: FakeApiServer) -> None:
        """The second stream begins at the second of the last line, and nothing is told twice."""
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
            return Answer(value=job(over("Complete", "Succeeded") if over_now.is_set() else None))

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


def cut(lines: list[str]) -> list[str]:
    """The same text in other parts."""
    text = "".join(lines)
    return [text[i : i + 17] for i in range(0, len(text), 17)]


class TestExplain:
    def test_everything_is_looked_at(self, server: FakeApiServer) -> None:
        waiting = {
            **over("Admitted", "Starting"),
            "observedGeneration": 1,
        }
        warning = {
            "involvedObject": {"kind": "StatefulSet", "name": "sum-reward"},
            "reason": "FailedCreate",
            "message": "exceeded quota",
            "lastTimestamp": "2026-01-02T03:04:00Z",
        }
        lease = {"holderIdentity": "", "leaseDurationSeconds": 8}
        held = "/apis/coordination.k8s.io/v1/namespaces/ppojob-system/leases/ppojob-operator"
        server.routes |= {
            f"GET {JOB}": Answer(value=job(waiting)),
            f"GET {PODS}": listed(pod("sum-controller-0", "controller")),
            f"GET {EVENTS}": listed(warning),
            f"GET {held}": Answer(value={"spec": lease}),
        }
        said = " ".join(call("explain", "sum").split())
        assert "1. OperatorSilent: no operator leads" in said
        assert "2. PodsMissing: actorRollout: pod sum-actor-rollout-0: not made yet" in said
        assert "(and 2 more): exceeded quota -> wait; if it lasts" in said

    def test_what_may_not_be_seen_is_named(self, server: FakeApiServer) -> None:
        server.routes |= {
            f"GET {JOB}": Answer(value=job({"phase": "Starting", "observedGeneration": 1})),
            f"GET {PODS}": refusal(403, "no pods for you"),
            f"GET {EVENTS}": refusal(403, "no events for you"),
        }
        assert call("explain", "sum").splitlines()[-2:] == [
            "not looked at: pods: no pods for you",
            "not looked at: events: no events for you",
        ]

    def test_the_last_word_of_the_controller_is_read_off_the_managed_fields(
        self, server: FakeApiServer
    ) -> None:
        stuck = {
            **over("Training", "Running"),
            "observedGeneration": 1,
            "training": {"step": 3, "totalSteps": 8},
        }
        running = job(stuck)
        running["metadata"]["managedFields"] = [
            {
                "manager": "ppojob-operator",
                "time": "2999-01-01T00:00:00Z",
                "fieldsV1": {"f:status": {"f:phase": {}}},
            },
            {
                "manager": "ppojob-controller",
                "time": "2026-01-02T03:04:00Z",
                "fieldsV1": {"f:status": {"f:training": {"f:step": {}}}},
            },
        ]
        pods = [pod("sum-reward-0", "reward"), pod("sum-reward-1", "reward")]
        pods += [pod("sum-controller-0", "controller"), pod("sum-actor-rollout-0", "actor-rollout")]
        server.routes |= {
            f"GET {JOB}": Answer(value=running),
            f"GET {PODS}": listed(*pods),
            f"GET {EVENTS}": listed(),
        }
        assert "1. StepStale: nothing new from the controller for " in call("explain", "sum")

    def test_supervisors_are_asked_for_the_missing_rank(self, server: FakeApiServer) -> None:
        unmet = over("PodsReady", "Starting")
        unmet["observedGeneration"] = 1
        unmet["conditions"].append(
            {**unmet["conditions"][0], "type": "Rendezvoused", "status": "False"}
        )
        pods = [pod("sum-reward-0", "reward"), pod("sum-controller-0", "controller", ready=False)]
        server.routes |= {
            f"GET {JOB}": Answer(value=job(unmet)),
            f"GET {PODS}": listed(*pods),
            f"GET {EVENTS}": listed(),
            f"GET {PODS}/sum-reward-0:7403/proxy/status": Answer(
                value={"phase": "lost", "reason": "rank 0 ended: 1"}
            ),
        }
        said = " ".join(call("explain", "sum").split())
        assert "RanksMissing: reward: pod sum-reward-0: its ranks are lost: rank 0 ended: 1" in said


class TestMetrics:
    text = (
        "# HELP b_total steps\n# TYPE b_total counter\n"
        'b_total{ppojob="sum",role="reward"} 1234.0\n'
        "# HELP a_seconds duration\n# TYPE a_seconds histogram\n"
        'a_seconds_bucket{le="+Inf",ppojob="sum"} 2.0\n'
        'a_seconds_count{ppojob="sum"} 2.0\na_seconds_sum{ppojob="sum"} 0.5\n'
    )

    def test_a_table_by_name(self, server: FakeApiServer) -> None:
        path = f"GET {PODS}/sum-controller-0:7404/proxy/metrics"
        server.routes |= {
            f"GET {JOB}": Answer(value=job()),
            path: lambda _: Answer(parts=iter([self.text])),
        }
        assert call("metrics", "sum").splitlines() == [
            "a_seconds_count         2.000  duration",
            "a_seconds_sum           0.500  duration",
            'b_total{role="reward"}  1,234  steps',
        ]
        assert call("metrics", "sum", "--raw") == self.text

    def test_a_controller_that_does_not_serve(self, server: FakeApiServer) -> None:
        path = f"GET {PODS}/sum-controller-0:7404/proxy/metrics"
        server.routes |= {f"GET {JOB}": Answer(value=job()), path: refusal(503, "no endpoints")}
        said = call("metrics", "sum", code=2)
        assert said.startswith(
            "metrics: got no answer from pod sum-controller-0: the job is Pending"
        )

    def test_something_that_is_no_exposition(self, server: FakeApiServer) -> None:
        path = f"GET {PODS}/sum-controller-0:7404/proxy/metrics"
        server.routes |= {f"GET {JOB}": Answer(value=job()), path: Answer(value=json.dumps("{"))}
        said = call("metrics", "sum", code=2)
        assert said.startswith("metrics: got ")


def test_a_watched_status_is_written_when_it_is_another_one(server: FakeApiServer) -> None:
    turns = iter(["Starting", "Starting", "Succeeded"])

    def now(_: Request) -> Answer:
        phase = next(turns)
        return Answer(
            value=job(over("Complete", phase) if phase == "Succeeded" else {"phase": phase})
        )

    server.routes[f"GET {JOB}"] = now
    said = call("status", "sum", "--watch")
    assert said.splitlines()[:3] == ["sum: Starting", "", "sum: Succeeded"]
