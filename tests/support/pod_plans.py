"""Plans of pods, for tests of supervisors."""

from typing import Any

from ppojob_trainer.supervisor.pod import PodPlan


def pod_plan(role: str, **changes: Any) -> PodPlan:
    plan: dict[str, Any] = {
        "pod": 0,
        "ranks": 1,
        "first_rank": 0,
        "silent_seconds": 600,
        "startup_seconds": 600,
        "restarts_without_progress": 3,
        "environment": {},
    }
    return PodPlan(role=role, **plan | changes)
