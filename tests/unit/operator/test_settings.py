from http.client import HTTPSConnection
from pathlib import Path

import pytest
from fake_api_server import Answer, kubeconfig, serving
from status_server import make_context

from ppojob_operator.connection import connect, from_kubeconfig
from ppojob_operator.settings import Settings, read_settings

KUBECONFIG = kubeconfig("http://127.0.0.1:8001", {"token": "secret"})


def test_settings_have_the_types_of_their_defaults() -> None:
    settings = read_settings(
        {
            "PPOJOB_OPERATOR_WORKERS": "4",
            "PPOJOB_OPERATOR_LEASE": "mine",
            "PPOJOB_OPERATOR_LEASE_SECONDS": "2.5",
            "PPOJOB_OPERATOR_WATCH_NAMESPACES": "a, b,",
            "HOME": "/",
        }
    )
    assert (settings.workers, settings.lease, settings.lease_seconds) == (4, "mine", 2.5)
    assert settings.watch_namespaces == ("a", "b")
    assert read_settings({}) == Settings()


def test_gangs_are_those_that_jobs_may_name() -> None:
    settings = read_settings({"PPOJOB_OPERATOR_GANGS": "workload, kueue"})
    assert settings.gangs == ("workload", "kueue")
    for wrong in ("slurm", "none"):
        with pytest.raises(ValueError, match=rf"GANGS: got '{wrong}': .* 'kueue', 'volcano'"):
            read_settings({"PPOJOB_OPERATOR_GANGS": f"kueue,{wrong}"})


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="WORKERS") as raised:
        read_settings({"PPOJOB_OPERATOR_WORKER": "4", "PPOJOB_OPERATOR_WORKERS": "many"})
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(
        "PPOJOB_OPERATOR_WORKERS: got 'many': Input should be a valid integer"
    )
    assert lines[1].startswith("PPOJOB_OPERATOR_WORKER: no such setting; one of PPOJOB_OPERATOR_T")


def test_a_kubeconfig_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    connection = connect({"KUBECONFIG": str(file)})
    assert (connection.server, connection.token()) == ("http://127.0.0.1:8001", "secret")
    assert connection.ssl is None


@pytest.mark.processes
def test_an_authority_that_kubectl_trusts_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with serving(context=make_context(tmp_path)) as server:
        server.routes["GET /livez"] = Answer(value="ok")
        file.write_text(kubeconfig(f"https://127.0.0.1:{server.port}", {}, tmp_path / "ca.crt"))
        client = HTTPSConnection("127.0.0.1", server.port, context=from_kubeconfig(file).ssl)
        client.request("GET", "/livez")
        assert client.getresponse().read() == b'"ok"'
        client.close()


@pytest.mark.parametrize("text", ["", "clusters: []", KUBECONFIG.replace('"here"}', '"there"}')])
def test_a_kubeconfig_that_leads_nowhere_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ValueError, match="no usable kubeconfig"):
        from_kubeconfig(file)
