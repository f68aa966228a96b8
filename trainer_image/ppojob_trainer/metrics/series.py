"""What Prometheus is told: series by name, kind and labels, in base units.

The series of a step's metrics follow from the rows of ``names.METRICS``; those here have no key in
metrics.jsonl. Every series carries the label ``ppojob``, the job's name; the namespace is the
scraped target's, as everywhere on a cluster.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]

JOB_LABEL: Final = "ppojob"

# Unit of the table -> base unit, as the suffix of a name, and how many of it one of the table's is.
_BASE_UNITS: Final = {
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "bytes": ("bytes", 1.0),
    "tokens": ("tokens", 1.0),
    "tokens/s": ("tokens_per_second", 1.0),
    "share": ("ratio", 1.0),
}
_PLACEHOLDER = re.compile(r"<([a-z ]+)>")
_HISTOGRAM_SUFFIXES: Final = ("_bucket", "_count", "_sum")


@dataclass(frozen=True, slots=True)
class Series:
    """One name that Prometheus knows.

    Attributes:
        name: begins with ``ppojob_`` and ends in its base unit; a counter's in ``_total``.
        labels: besides ``ppojob``.
        scale: what a value of the table is multiplied by.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def selectors(self) -> tuple[str, ...]:
        """Names under which a query finds it."""
        if self.kind == "histogram":
            return tuple(self.name + suffix for suffix in _HISTOGRAM_SUFFIXES)
        return (self.name,)


def series_of(name: str, unit: str, meaning: str, exported: tuple[str, Kind] | None) -> Series:
    """The series of a row of the table.

    Placeholders of the name become labels. Without ``exported``, a name and kind, it is a gauge
    whose name is the row's, with the base unit behind it unless it says so already.
    """
    suffix, scale = _BASE_UNITS.get(unit, ("", 1.0))
    labels = tuple(label.replace(" ", "_") for label in _PLACEHOLDER.findall(name))
    if exported is not None:
        return Series(*exported, meaning, labels, scale)
    words = re.sub(r"[^a-z0-9]+", "_", _PLACEHOLDER.sub("", name)).strip("_")
    if suffix and not words.endswith(suffix):
        words = f"{words}_{suffix}"
    return Series(f"ppojob_{words}", "gauge", meaning, labels, scale)


STEPS: Final = Series(
    "ppojob_steps_total", "counter", "steps finished; a repeated step counts again"
)
LAST_PROGRESS: Final = Series(
    "ppojob_last_progress_timestamp_seconds",
    "gauge",
    "unix seconds when the last step ended; before the first, when the controller began",
)
LAST_COMMIT: Final = Series(
    "ppojob_last_commit_timestamp_seconds",
    "gauge",
    "unix seconds of the last commit; before the first, when the controller began",
)
COMMITTED_STEP: Final = Series(
    "ppojob_committed_step", "gauge", "step of the last commit: a restart goes on from there"
)
CONTROLLER_SERIES: Final = (STEPS, LAST_PROGRESS, LAST_COMMIT, COMMITTED_STEP)

_POD: Final = ("role", "index")
_RANK: Final = ("role", "rank")
POD_EPOCH: Final = Series("ppojob_pod_epoch", "gauge", "attempt of the role that it runs", _POD)
POD_RESTARTS: Final = Series(
    "ppojob_pod_restarts_total", "counter", "how often the pod's ranks were started again", _POD
)
RANK_READY: Final = Series(
    "ppojob_rank_ready", "gauge", "1 where a rank answers, 0 where it starts, ended or hangs", _RANK
)
RANK_MEMORY: Final = Series(
    "ppojob_rank_resident_memory_bytes", "gauge", "main memory that a rank holds", _RANK
)
RANK_CPU: Final = Series(
    "ppojob_rank_cpu_seconds_total", "counter", "processor time of a rank, in this attempt", _RANK
)
POD_SERIES: Final = (POD_EPOCH, POD_RESTARTS, RANK_READY, RANK_MEMORY, RANK_CPU)
