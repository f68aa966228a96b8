import os
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ppojob_trainer.metrics.names import POD_SERIES
from ppojob_trainer.rpc.messages.pods import PodStatus, RankState
from ppojob_trainer.supervisor.health import health_server, read_process_use

pytestmark = pytest.mark.processes

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(status: PodStatus) -> Samples:
    server = health_server("127.0.0.1", 0, "sums", lambda: status)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            page = answer.read().decode()
    finally:
        server.close()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of_rank(name: str, rank: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, (("ppojob", "sums"), ("rank", str(rank)), ("role", "actorRollout"))


def test_a_pod_and_its_ranks():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ranks = [
        RankState(2, os.getpid(), "ready"),
        RankState(3, 0, "starting"),
        RankState(4, ended.pid, "exited", 1),
    ]
    found = scrape(PodStatus("actorRollout", 1, 3, "ready", tuple(ranks), restarts=2))
    pod = (("index", "1"), ("ppojob", "sums"), ("role", "actorRollout"))
    assert found["ppojob_pod_attempt", pod] == 3
    assert found["ppojob_pod_restarts_total", pod] == 2
    assert [found[of_rank("ppojob_rank_ready", rank)] for rank in (2, 3, 4)] == [1, 0, 0]
    for name in ("ppojob_rank_resident_memory_bytes", "ppojob_rank_cpu_seconds_total"):
        assert [of_rank(name, rank) in found for rank in (2, 3, 4)] == [True, False, False]
    assert {name for name, _ in found} == {series.name for series in POD_SERIES}


def test_the_use_is_that_of_the_process():
    held = "import sys; held = bytearray(b'x' * 64_000_000); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", held], **pipes) as process:
        process.stdout.readline()
        resident_bytes, cpu_seconds = read_process_use(process.pid)
        process.stdin.close()
    assert 64e6 < resident_bytes < 200e6
    assert 0 < cpu_seconds < 10
    assert read_process_use(process.pid) is None
