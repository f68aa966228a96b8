import ssl
from pathlib import Path

import pytest
from cluster_commands import JOB, JOBS, call, job, status_of
from fake_api_server import (
    TOKEN,
    Answer,
    FakeApiServer,
    Request,
    kubeconfig,
    listed,
    refusal,
    serving,
)
from status_server import make_certificate, make_context

from ppojob_cli.cluster import lifecycle


def refused(*arguments: str) -> str:
    said = call(*arguments, code=2)
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("text", [None, "", "]", "[]", "clusters: 1", '{"contexts": []}'])
def test_no_kubeconfig_or_a_broken_one(text: str | None, tmp_path: Path, monkeypatch):
    if text is not None:
        (tmp_path / "broken").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    said = refused("status", "sum")
    assert said.startswith("kubeconfig: got ")
    assert text is not None or str(tmp_path) in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *(((command, ""), "NAME: ") for command in ("status", "suspend", "explain", "logs")),
        *((("status", name), "NAME: ") for name in (".", "a/b", "sum?watch=1", "sum\n", "Sum")),
        (("status", "sum", "--context", "elsewhere"), '--context: got "elsewhere": '),
        (("status", "sum", "--namespace", "../lab"), '--namespace: got "../lab": '),
    ],
)
def test_what_is_no_name_is_not_asked_for(arguments, told: str, server: FakeApiServer):
    assert refused(*arguments).startswith(told)
    assert server.requests == []


def test_nobody_answers(server: FakeApiServer, tmp_path: Path) -> None:
    server.port = 1
    server.kubeconfig(tmp_path / "kubeconfig")
    assert refused("status", "sum").startswith("cluster: got no answer from http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(401, 'user "me"'), "got 401: the API server does not know you; log in again"),
        (refusal(403, 'user "me" cannot'), 'got 403: user "me" cannot; ask for that right'),
        (refusal(500, 'user "me" cannot'), 'got 500: user "me" cannot; try again'),
        (Answer(parts=["<html>"]), "it is not an API server"),
        (None, "got no resource ppojobs: PPOJob is not installed;"),
        (Answer(value=job({"phase": "Levitating"})), "it is of another version of PPOJob"),
    ],
)
def test_an_answer_that_is_of_no_use(answer: Answer | None, words: str, server: FakeApiServer):
    if answer is not None:
        server.routes[f"GET {JOB}"] = answer
    assert words in refused("status", "sum")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "namespace lab has no PPOJob; another --namespace"),
        (("sun", "addition"), "namespace lab has no such PPOJob; did you mean sun"),
        (("addition",), "namespace lab has no such PPOJob; one of addition"),
    ],
)
def test_no_such_job(server: FakeApiServer, names: tuple[str, ...], words: str) -> None:
    server.routes[f"GET {JOBS}"] = listed(*({"metadata": {"name": name}} for name in names))
    assert call("status", "sum", code=2) == f'NAME: got "sum": {words}\n'


def test_the_namespace_and_the_token_of_the_kubeconfig_are_used(server: FakeApiServer) -> None:
    other = JOB.replace("/lab/", "/elsewhere/")
    server.routes |= {f"GET {JOB}": Answer(value=job()), f"GET {other}": Answer(value=job())}
    call("status", "sum")
    call("status", "sum", "-n", "elsewhere")
    assert [one.path for one in server.requests] == [JOB, other]
    assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {TOKEN}"}


@pytest.mark.processes
@pytest.mark.parametrize("known", [True, False])
def test_certificates_of_the_kubeconfig_are_used_as_kubectl_does(known, tmp_path, monkeypatch):
    context = make_context(tmp_path)
    context.load_verify_locations(tmp_path / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    mine = {
        "client-certificate": str(tmp_path / "server.crt"),
        "client-key": str(tmp_path / "server.key"),
    }
    (tmp_path / "other").mkdir()
    make_certificate(tmp_path / "other")
    authority = (tmp_path if known else tmp_path / "other") / "ca.crt"
    with serving(context=context) as server:
        server.routes[f"GET {JOB}"] = Answer(value=job())
        place = f"https://127.0.0.1:{server.port}"
        (tmp_path / "config").write_text(kubeconfig(place, mine, authority, namespace="lab"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        if known:
            call("status", "sum")
        else:
            assert refused("status", "sum").startswith(f"cluster: got no answer from {place}: ")
        assert [one.path for one in server.requests] == [JOB] * known


def test_where_the_cluster_is_may_stand_before_the_command(server, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG")
    server.routes[f"GET {JOB}"] = Answer(value=job())
    place = ["-n", "lab", "--context", "here", "--kubeconfig", str(tmp_path / "kubeconfig")]
    other = ["-n", "elsewhere", "--context", "none", "--kubeconfig", "none"]
    for before, behind in ((place, []), ([], place), (other, place)):
        call(*before, "status", "sum", *behind)
    assert [one.path for one in server.requests] == [JOB] * 3


def test_a_command_of_this_machine_takes_no_cluster() -> None:
    assert '--context: got "here": plan uses no cluster' in call(
        "--context", "here", "plan", "job.yaml", code=2
    )


def test_a_watched_status_is_written_when_it_is_another_one(server: FakeApiServer, monkeypatch):
    monkeypatch.setattr(lifecycle, "_WATCH_SECONDS", 0.01)
    turns = iter(["Starting", "Starting", "Succeeded"])

    def now(_: Request) -> Answer:
        phase = next(turns)
        return Answer(
            value=job(status_of("Complete", phase) if phase == "Succeeded" else {"phase": phase})
        )

    server.routes[f"GET {JOB}"] = now
    said = call("status", "sum", "--watch")
    assert said.splitlines()[:3] == ["sum: Starting", "", "sum: Succeeded"]
