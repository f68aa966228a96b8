"""What a pod tells Prometheus of its ranks, over real HTTP and of real processes."""

import os
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ppojob_trainer.metrics.series import POD_SERIES
from ppojob_trainer.rpc.messages.pods import PodStatus, RankState
from ppojob_trainer.supervisor.health import health_server, read_process_use

pytestmark = pytest.mark.processes

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def status_of(*ranks: RankState) -> PodStatus:
    return PodStatus("actorRollout", pod=1, epoch=3, phase="ready", ranks=ranks, restarts=2)


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
    found = scrape(
        status_of(RankState(2, os.getpid(), "ready"), RankState(3, os.getpid(), "silent"))
    )
    pod = (("index", "1"), ("ppojob", "sums"), ("role", "actorRollout"))
    assert found["ppojob_pod_epoch", pod] == 3
    assert found["ppojob_pod_restarts_total", pod] == 2
    assert found[of_rank("ppojob_rank_ready", 2)] == 1
    assert found[of_rank("ppojob_rank_ready", 3)] == 0
    assert found[of_rank("ppojob_rank_resident_memory_bytes", 2)] > 1e6
    assert found[of_rank("ppojob_rank_cpu_seconds_total", 2)] > 0
    assert {name for name, _ in found} == {series.name for series in POD_SERIES}


def test_ranks_that_are_not_there_take_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = scrape(status_of(RankState(2, 0, "starting"), RankState(3, ended.pid, "exited", 1)))
    assert {name for name, _ in found} == {
        "ppojob_pod_epoch",
        "ppojob_pod_restarts_total",
        "ppojob_rank_ready",
    }


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
