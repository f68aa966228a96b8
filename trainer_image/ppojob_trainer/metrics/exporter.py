"""Prometheus exporter: the last step's metrics over HTTP.

A view like TensorBoard: the record is metrics.jsonl. Nothing is pushed, and a scrape does not delay
the loop, since a thread of its own answers it.
"""

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

# Buckets from a stage of a toy model to a step of hours.
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


class Prometheus:
    """Serves the metrics of a job under `/metrics`; listens from construction.

    Gauges hold the values of the last step. Counters and histograms count work, also work that is
    repeated after a loss, and begin at 0 with the process, as Prometheus expects. Port 0 selects a
    free one; an OSError says that address and port cannot be bound.
    """

    def __init__(
        self, job: str, address: str, port: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._job = job
        self._clock = clock
        # The age of a counter is its process's; a series more for each says nothing new.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._instruments = {
            one.name: _MAKERS[one.kind](
                one.name, one.meaning, (names.JOB_LABEL, *one.labels), registry=registry
            )
            for one in (*(metric.series for metric in names.METRICS), *names.CONTROLLER_SERIES)
        }
        self._take(names.LAST_PROGRESS, clock())
        self._take(names.LAST_CHECKPOINT, clock())
        self._server = PageServer(address, port, MetricsHandler.factory(registry))
        self._server.start()

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._server.port

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Export a step; keys outside of the table are not exported."""
        for key, value in metrics.items():
            metric = names.find(key)
            if metric is not None:
                self._take(metric.series, value, metric.label_values(key))
        self._take(names.STEPS, 1.0)
        self._take(names.LAST_PROGRESS, self._clock())

    def saved(self, step: int) -> None:
        """Export that the checkpoint of a step is complete."""
        self._take(names.CHECKPOINT_STEP, float(step))
        self._take(names.LAST_CHECKPOINT, self._clock())

    def cut_after(self, step: int) -> None:
        """Do nothing: gauges follow with the repeated step."""

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    def _take(self, series: names.Series, value: float, labels: tuple[str, ...] = ()) -> None:
        instrument = self._instruments[series.name].labels(self._job, *labels)
        scaled = value * series.scale
        if isinstance(instrument, Gauge):
            instrument.set(scaled)
        elif math.isfinite(scaled) and scaled >= 0:
            # What is not a number is no work done.
            add = instrument.inc if isinstance(instrument, Counter) else instrument.observe
            add(scaled)
