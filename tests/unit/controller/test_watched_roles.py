import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.errors import (
    ChannelLost,
    ConfigError,
    Interrupted,
    JobFailed,
    RoleLost,
    StorageError,
)
from ppojob_trainer.rpc.client import Peer
from ppojob_trainer.rpc.identity import Agreement, PodIdentity
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.rpc.methods import BARRIER, IDENTITY, START, STATUS
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing

THEIRS = PodIdentity(code="c", config="other", models={})
Status = Callable[[Any], PodStatus]


def pod(attempt: int, phase: str) -> Status:
    return lambda _: PodStatus("actorRollout", 0, attempt, phase)


@pytest.fixture
def actor(serve, caller_of) -> Callable[..., Roles]:
    """Roles of one: a supervisor that says so, a rank that does so, and more ranks."""

    def make(status: Status, work: Callable[[Any], msgspec.Struct], *more: Peer) -> Roles:
        routes = [Route(STATUS, status), Route(START, status), Route(IDENTITY, lambda _: THEIRS)]
        ranks = (serve([Route(BARRIER, work)]), *more)
        supervisor = serve(routes, attempt=None)
        group = RoleGroup("actorRollout", (supervisor,), ranks, True, True, attempt=1)
        return Roles(caller_of(), (group,), 5.0, lambda: False, Agreement("c", "r"))

    return make


def idle(_: Any) -> Nothing:
    return Nothing()


def raises(problem: Exception) -> Callable[[Any], msgspec.Struct]:
    def work(_: Any) -> msgspec.Struct:
        raise problem

    return work


def test_a_pod_that_began_anew_has_lost_its_ranks(actor) -> None:
    """Its container was started again: it answers, and knows of no attempt."""
    for phase in ("starting", "ready"):
        actor(pod(1, phase), idle).watch()
    roles = actor(pod(0, "idle"), idle)
    with pytest.raises(RoleLost, match="pod 0: it was restarted, without ranks"):
        roles.watch()


@pytest.mark.parametrize(
    ("problem", "error", "words"),
    [
        (StorageError(Path("/run/x"), "No space left"), StorageError, "/run/x: No space left"),
        (ValueError("no"), JobFailed, "ValueError: no"),
        # Between the living, it costs the consumer.
        (ChannelLost("a-b", "too slow"), RoleLost, "too slow"),
    ],
)
def test_work_that_fails_ends_the_job_or_costs_a_role(problem, error, words, actor, serve) -> None:
    consumer = serve([Route(BARRIER, raises(problem))], role="reward")
    roles = actor(pod(1, "ready"), raises(problem), consumer)
    with pytest.raises(error, match=words) as caught:
        roles.barrier(roles.groups, 3, "save")
    assert getattr(caught.value, "role", "reward") == "reward"


def test_a_pod_that_runs_something_else_is_not_started(actor) -> None:
    def started(_: Any) -> PodStatus:
        raise AssertionError("it was started")

    roles = actor(started, idle)
    with pytest.raises(ConfigError, match=r"^actorRollout rank 0: got configuration other: "):
        roles.start(roles.groups[0], 2)


SAME = PodIdentity(code="c", config="r", models={"/m": "a"})
OTHER_MODEL = PodIdentity(code="c", config="r", models={"/m": "b"})
UNREAD = PodIdentity(code="c", config="r", models=None)


@pytest.fixture
def pods(serve, caller_of) -> Callable[..., Roles]:
    """Roles of one pod each, at attempt 1: an actor that lives, and a reward that does not yet."""

    def make(actor: Callable[[Any], PodIdentity], reward: Callable[[Any], PodIdentity]) -> Roles:
        groups = tuple(
            RoleGroup(role, (serve(routes, role, None),), (), role == "actorRollout", False, 1)
            for role, routes in {
                "actorRollout": [Route(STATUS, pod(1, "ready")), Route(IDENTITY, actor)],
                "reward": [
                    Route(STATUS, pod(0, "idle")),
                    Route(START, pod(2, "starting")),
                    Route(IDENTITY, reward),
                ],
            }.items()
        )
        agreement = Agreement(code="c", config="r")
        return Roles(caller_of(), groups, 5.0, lambda: False, agreement)

    return make


def tells(*identities: PodIdentity) -> Callable[[Any], PodIdentity]:
    """One after the other, then the last again and again."""
    left = list(identities)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("reading", [(), (UNREAD, UNREAD)])
def test_a_pod_that_lives_and_one_that_is_made_again_are_compared(reading, pods) -> None:
    """Also by a controller that came back: else the new pod is compared with itself alone."""
    roles = pods(tells(SAME), tells(*reading, OTHER_MODEL))
    assert [group.name for group in roles.missing()] == ["reward"]
    with pytest.raises(ConfigError, match=r"^/m: got b in reward rank 0 and a in actorRollout"):
        roles.start(roles.groups[1], 2)


def test_a_pod_whose_storage_hangs_is_lost_in_the_end(pods) -> None:
    roles = pods(tells(SAME), tells(UNREAD))
    roles.caller.default_deadline_seconds = 0.5
    with pytest.raises(RoleLost, match=r"reward rank 0: its models were not read within 0\.5 s"):
        roles.start(roles.groups[1], 2)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_role_that_lives_and_does_not_say_yet_what_it_runs_keeps_its_ranks(
    is_slow, pods, monkeypatch
) -> None:
    soon = replace(IDENTITY, deadline_seconds=0.3)
    monkeypatch.setattr("ppojob_trainer.controller.roles._IDENTITY_OF_LIVING", soon)
    may_go_on = threading.Event()

    def slow(_: Any) -> PodIdentity:
        may_go_on.wait(60)
        return SAME

    roles = pods(slow if is_slow else tells(UNREAD), tells(SAME))
    try:
        assert [group.name for group in roles.missing()] == ["reward"]
    finally:
        may_go_on.set()
    roles.start(roles.groups[1], 2)


@pytest.mark.parametrize(
    ("gone", "error", "words"),
    [
        # As of a deleted job, whose pods go all at once.
        ("actorRollout", Interrupted, "without actorRollout: the last checkpoint is kept"),
        # The actor holds a step that is not saved: it is to be ended first.
        ("reward", RoleLost, "reward supervisor: no answer to identity within 0.5 s"),
    ],
)
def test_a_job_that_is_asked_to_end_waits_for_a_role_that_its_step_needs(gone, error, words, actor):
    roles = actor(pod(1, "ready"), idle)
    roles.caller.default_deadline_seconds = 0.5
    peer = Peer(f"{gone} supervisor", "127.0.0.1", 1, gone)  # nobody listens there
    lost = RoleGroup(gone, (peer,), (), gone == "actorRollout", False, attempt=1)
    others = roles.groups if gone == "reward" else ()
    roles.groups = (*others, lost)
    roles.stop_requested = lambda: True
    with pytest.raises(error, match=words):
        roles.start(lost, 2)
