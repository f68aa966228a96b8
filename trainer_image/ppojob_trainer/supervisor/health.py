"""HTTP endpoint of a pod: health probe, status and Prometheus metrics."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ppojob_trainer.metrics.names import (
    JOB_LABEL,
    POD_ATTEMPT,
    POD_RESTARTS,
    RANK_CPU,
    RANK_MEMORY,
    RANK_READY,
    Series,
)
from ppojob_trainer.metrics.page_server import PageHandler, PageServer
from ppojob_trainer.rpc.messages.pods import PodStatus

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def health_server(address: str, port: int, job: str, status: Callable[[], PodStatus]) -> PageServer:
    """Return a server of `/healthz` (liveness), `/status` (`PodStatus` as JSON) and `/metrics`.

    Port 0 selects a free port.
    """

    class Handler(PageHandler):
        def do_GET(self) -> None:
            if self.path == "/healthz":
                self.answer(b"ok\n", "text/plain")
            elif self.path == "/status":
                self.answer(msgspec.json.encode(status()), "application/json")
            elif self.path == "/metrics":
                self.answer(generate_latest(_PodSeries(job, status())), _METRICS_TYPE)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

    return PageServer(address, port, Handler)


def read_process_use(pid: int) -> tuple[int, float] | None:
    """Return resident bytes and CPU seconds of a process, or None if it has ended.

    Source: proc(5), `/proc/<pid>/stat` fields 14, 15 and 24, counted after the name in brackets.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[21]) * _PAGE_BYTES, (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


@dataclass(frozen=True)
class _PodSeries(Collector):
    job: str
    status: PodStatus

    def collect(self) -> Iterator[Metric]:
        status = self.status
        attempt, restarts, ready, memory, cpu = map(
            _family, (POD_ATTEMPT, POD_RESTARTS, RANK_READY, RANK_MEMORY, RANK_CPU)
        )
        pod = [self.job, status.role, str(status.pod)]
        attempt.add_metric(pod, status.attempt)
        restarts.add_metric(pod, status.restarts)
        for rank in status.ranks:
            labels = [self.job, status.role, str(rank.rank)]
            ready.add_metric(labels, float(rank.state == "ready"))
            use = read_process_use(rank.pid) if rank.pid else None
            if use is not None:
                memory.add_metric(labels, use[0])
                cpu.add_metric(labels, use[1])
        yield from (attempt, restarts, ready, memory, cpu)


def _family(series: Series) -> GaugeMetricFamily | CounterMetricFamily:
    made = GaugeMetricFamily if series.kind == "gauge" else CounterMetricFamily
    return made(series.name, series.meaning, labels=(JOB_LABEL, *series.labels))
