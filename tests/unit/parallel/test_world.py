import socket

import pytest
import torch

from ppojob_trainer.errors import WorldNotOpen
from ppojob_trainer.parallel.channel import listening
from ppojob_trainer.parallel.dims import HOLDERS
from ppojob_trainer.parallel.world import MeetingPoint, find_store, open_world

CPU = torch.device("cpu")


@pytest.fixture
def meeting() -> MeetingPoint:
    with socket.create_server(("127.0.1.1", 0)) as server:
        return MeetingPoint("127.0.1.1", server.getsockname()[1], "uid/actorRollout/3")


def test_one_rank_hosts_a_store_where_other_roles_find_it(meeting):
    with open_world(0, 1, CPU, address="127.0.1.1", meeting=meeting) as world:
        world.store.set("who", "actor")
        assert find_store(meeting).get("who") == b"actor"


def test_a_rank_listens_at_the_address_of_its_pod_alone(meeting):
    before = listening()
    with open_world(0, 1, CPU, address="127.0.1.7", meeting=meeting) as world:
        assert world.along(*HOLDERS) is world.group
        assert {address for address, _ in listening() - before} == {"127.0.1.7"}


def test_the_store_of_an_older_attempt_is_not_taken_for_ours(meeting, monkeypatch):
    monkeypatch.setattr("ppojob_trainer.parallel.world._ATTEMPT_SECONDS", 0.2)
    older = MeetingPoint(meeting.host, meeting.port, "uid/actorRollout/2")
    with (
        open_world(0, 1, CPU, address="127.0.1.1", meeting=older),
        pytest.raises(WorldNotOpen, match=r"uid/actorRollout/3: rank 0 did not open its store at"),
    ):
        find_store(meeting, open_seconds=0.1)


def test_nobody_comes(meeting):
    with (
        pytest.raises(WorldNotOpen, match=r"within 0\.2 s"),
        open_world(1, 2, CPU, address="127.0.1.2", meeting=meeting, open_seconds=0.2),
    ):
        pass


def test_a_port_that_is_taken_is_named(meeting):
    with (
        socket.create_server(("127.0.1.1", meeting.port)),
        pytest.raises(WorldNotOpen, match=rf"127\.0\.1\.1:{meeting.port} for its store"),
        open_world(0, 1, CPU, address="127.0.1.1", meeting=meeting),
    ):
        pass
