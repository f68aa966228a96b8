"""Prometheus exporter: the metrics of the last step over HTTP, served by a thread."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    MetricsHandler,
    disable_created_metrics,
)

from ppojob_trainer.metrics import names
from ppojob_trainer.metrics.page_server import PageServer
from ppojob_trainer.metrics.sinks import Sink

DURATION_BUCKETS: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40),
    *(60, 120, 300, 600, 1200, 3600, 7200),
)

Instrument = Counter | Gauge | Histogram
_MAKERS: Final[Mapping[names.Kind, Callable[..., Instrument]]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": partial(Histogram, buckets=DURATION_BUCKETS),
}


class Prometheus(Sink):
    """Metric sink that serves `/metrics` from construction; port 0 selects a free port.

    Gauges have the values of the last step. Counters and histograms start at 0 with the process and
    include repeated work. OSError if the address cannot be bound.
    """

    def __init__(
        self, job: str, address: str, port: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._job = job
        self._clock = clock
        # Each counter was created with the process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._instruments = {
            one.name: _MAKERS[one.kind](
                one.name, one.meaning, (names.JOB_LABEL, *one.labels), registry=registry
            )
            for one in (*(metric.series for metric in names.METRICS), *names.CONTROLLER_SERIES)
        }
        self._record(names.LAST_PROGRESS, clock())
        self._record(names.LAST_CHECKPOINT, clock())
        self._server = PageServer(address, port, MetricsHandler.factory(registry))
        self._server.start()

    @property
    def port(self) -> int:
        return self._server.port

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Export the metrics of a step that are in the table."""
        for key, value in metrics.items():
            metric = names.find(key)
            if metric is not None:
                self._record(metric.series, value, metric.label_values(key))
        self._record(names.STEPS, 1.0)
        self._record(names.LAST_PROGRESS, self._clock())

    def saved(self, step: int) -> None:
        """Export the step of a complete checkpoint."""
        self._record(names.CHECKPOINT_STEP, float(step))
        self._record(names.LAST_CHECKPOINT, self._clock())

    def close(self) -> None:
        self._server.close()

    def _record(self, series: names.Series, value: float, labels: tuple[str, ...] = ()) -> None:
        instrument = self._instruments[series.name].labels(self._job, *labels)
        scaled = value * series.scale
        if isinstance(instrument, Gauge):
            instrument.set(scaled)
        elif math.isfinite(scaled) and scaled >= 0:
            add = instrument.inc if isinstance(instrument, Counter) else instrument.observe
            add(scaled)
