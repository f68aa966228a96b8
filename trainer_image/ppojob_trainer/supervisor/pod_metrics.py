"""What a supervisor tells Prometheus of its processes, asked of the kernel at each scrape.

Here and not in the ranks: a rank that hangs or computes cannot answer, and is the one to look at.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ppojob_trainer.metrics.names import (
    JOB_LABEL,
    POD_EPOCH,
    POD_RESTARTS,
    RANK_CPU,
    RANK_MEMORY,
    RANK_READY,
    Series,
)
from ppojob_trainer.rpc.messages.pods import PodStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process takes.

    Attributes:
        resident_bytes: main memory.
        cpu_seconds: user and system time since it began.
    """

    resident_bytes: int
    cpu_seconds: float


def read_process_use(pid: int) -> ProcessUse | None:
    """Ask the kernel about a process; None when it is gone.

    Source: proc(5), `/proc/<pid>/stat` fields 14, 15 and 24, counted behind the name in brackets,
    which may hold anything.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessUse(
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
    )


class PodMetrics(Collector):
    """The series of one pod.

    Args:
        job: name of the job.
        status: gives the pod's state.
    """

    def __init__(self, job: str, status: Callable[[], PodStatus]) -> None:
        self._job = job
        self._status = status
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self) -> bytes:
        """The page that Prometheus scrapes, of the type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        status = self._status()
        pod = [self._job, status.role, str(status.pod)]
        epoch, restarts, ready, memory, cpu = map(
            _family, (POD_EPOCH, POD_RESTARTS, RANK_READY, RANK_MEMORY, RANK_CPU)
        )
        epoch.add_metric(pod, status.epoch)
        restarts.add_metric(pod, status.restarts)
        for rank in status.ranks:
            labels = [self._job, status.role, str(rank.rank)]
            ready.add_metric(labels, float(rank.state == "ready"))
            use = read_process_use(rank.pid) if rank.pid else None
            if use is not None:
                memory.add_metric(labels, use.resident_bytes)
                cpu.add_metric(labels, use.cpu_seconds)
        yield from (epoch, restarts, ready, memory, cpu)


def _family(series: Series) -> GaugeMetricFamily | CounterMetricFamily:
    made = GaugeMetricFamily if series.kind == "gauge" else CounterMetricFamily
    return made(series.name, series.meaning, labels=(JOB_LABEL, *series.labels))
