"""`status`, and what it shares with all commands about a job on a cluster: over real HTTP."""

import json
from pathlib import Path

import pytest
from cluster_commands import JOB, JOBS, call, job, status_of
from fake_api_server import TOKEN, Answer, FakeApiServer, Request, listed, refusal


class TestTrouble:
    def test_no_kubeconfig(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        said = call("status", "sum", code=2)
        assert said.startswith(f"kubeconfig: got {tmp_path}/none: Invalid kube-config file. No ")
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

    @pytest.mark.parametrize(
        ("command", "name"),
        [
            *((command, "") for command in ("status", "suspend", "explain", "logs", "metrics")),
            *(("status", name) for name in (".", "a/b", "sum?watch=1", "sum\n", "Sum")),
        ],
    )
    def test_what_is_no_name_is_not_asked_for(
        self, command: str, name: str, server: FakeApiServer
    ) -> None:
        said = call(command, name, code=2)
        assert said == (
            f"NAME: got {json.dumps(name)}: no job has such a name; a letter, then letters, digits"
            " and hyphens, all lower case\n"
        )
        assert server.requests == []

    def test_what_is_no_namespace_is_not_asked_for(self, server: FakeApiServer) -> None:
        said = call("status", "sum", "--namespace", "../lab", code=2)
        assert said.startswith('--namespace: got "../lab": no namespace has such a name; ')
        assert server.requests == []

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


def test_where_the_cluster_is_may_stand_before_the_command(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    server.routes[f"GET {JOB}"] = Answer(value=job())
    place = ["-n", "lab", "--context", "here", "--kubeconfig", str(tmp_path / "kubeconfig")]
    other = ["-n", "elsewhere", "--context", "none", "--kubeconfig", "none"]
    for before, behind in ((place, []), ([], place), (other, place)):
        call(*before, "status", "sum", *behind)
    assert [one.path for one in server.requests] == [JOB] * 3


def test_a_command_of_this_machine_takes_no_cluster() -> None:
    assert '--context: got "here": plan asks no cluster' in call(
        "--context", "here", "plan", "job.yaml", code=2
    )


def test_a_watched_status_is_written_when_it_is_another_one(server: FakeApiServer) -> None:
    turns = iter(["Starting", "Starting", "Succeeded"])

    def now(_: Request) -> Answer:
        phase = next(turns)
        return Answer(
            value=job(status_of("Complete", phase) if phase == "Succeeded" else {"phase": phase})
        )

    server.routes[f"GET {JOB}"] = now
    said = call("status", "sum", "--watch")
    assert said.splitlines()[:3] == ["sum: Starting", "", "sum: Succeeded"]
