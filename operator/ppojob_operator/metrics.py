"""Prometheus metrics of the operator; docs/operations.md has a line for each."""

from prometheus_client import Counter, Gauge, Histogram

_SHORT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
_LONG = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 90.0, 180.0, 300.0, 600.0, 1_800.0, 3_600.0)

RECONCILES = Counter(
    "ppojob_operator_reconciles_total",
    "Reconciles by outcome; docs/operations.md lists the outcomes.",
    ["outcome"],
)
RECONCILE_SECONDS = Histogram(
    "ppojob_operator_reconcile_duration_seconds", "Duration of a reconcile.", buckets=_SHORT
)
QUEUE_AGE_SECONDS = Histogram(
    "ppojob_operator_queue_age_seconds",
    "Time of a job in the queue until its reconcile began.",
    buckets=_SHORT,
)
QUEUE_LENGTH = Gauge("ppojob_operator_queue_length", "Jobs that wait for a reconcile.")
API_REQUESTS = Counter(
    "ppojob_operator_api_requests_total",
    "Requests to the API server; code `none` without an answer.",
    ["verb", "kind", "code"],
)
API_SECONDS = Histogram(
    "ppojob_operator_api_request_duration_seconds",
    "Duration of a request to the API server, without watches.",
    ["verb"],
    buckets=_SHORT,
)
JOBS = Gauge("ppojob_operator_jobs", "Jobs by phase.", ["phase"])
PODS_READY_SECONDS = Histogram(
    "ppojob_operator_pods_ready_seconds",
    "Time from the creation of a job until all its pods were ready for the first time.",
    buckets=_LONG,
)
FIRST_STEP_SECONDS = Histogram(
    "ppojob_operator_first_step_seconds",
    "Time from the creation of a job until the operator observed its first step.",
    buckets=_LONG,
)
RESTARTS = Counter(
    "ppojob_operator_restarts_total",
    "Container failures by role and class: configuration, application, transient, disruption.",
    ["role", "kind"],
)
POD_DELETIONS = Counter(
    "ppojob_operator_pod_deletions_total",
    "Pods that the operator deleted, by whether it forced the deletion (node lost).",
    ["forced"],
)
LEADER = Gauge("ppojob_operator_leader", "1 while this replica leads.")
LAST_HEARD_SECONDS = Gauge(
    "ppojob_operator_watch_last_heard_timestamp_seconds",
    "Time of the last event or bookmark in the watch of a kind in a namespace (empty: in all).",
    ["kind", "watched_namespace"],
)
RELISTS = Counter(
    "ppojob_operator_relists_total", "Complete lists of a kind, including the first.", ["kind"]
)
