import socket

import pytest
import torch

from ppojob_trainer.errors import WorldNotOpen
from ppojob_trainer.parallel.channel import listening
from ppojob_trainer.parallel.dims import HOLDERS
from ppojob_trainer.parallel.world import Rendezvous, find_store, open_world

CPU = torch.device("cpu")


@pytest.fixture
def rendezvous() -> Rendezvous:
    with socket.create_server(("127.0.1.1", 0)) as server:
        return Rendezvous("127.0.1.1", server.getsockname()[1], "uid/actorRollout/3")


def test_one_rank_hosts_a_store_where_other_roles_find_it(rendezvous):
    with open_world(0, 1, CPU, address="127.0.1.1", rendezvous=rendezvous) as world:
        world.store.set("who", "actor")
        assert find_store(rendezvous).get("who") == b"actor"


def test_a_rank_listens_at_the_address_of_its_pod_alone(rendezvous):
    before = listening()
    with open_world(0, 1, CPU, address="127.0.1.7", rendezvous=rendezvous) as world:
        assert world.along(*HOLDERS) is world.group
        assert {address for address, _ in listening() - before} == {"127.0.1.7"}


def test_the_store_of_an_older_attempt_is_not_taken_for_ours(rendezvous, monkeypatch):
    monkeypatch.setattr("ppojob_trainer.parallel.world._ATTEMPT_SECONDS", 0.2)
    older = Rendezvous(rendezvous.host, rendezvous.port, "uid/actorRollout/2")
    with (
        open_world(0, 1, CPU, address="127.0.1.1", rendezvous=older),
        pytest.raises(WorldNotOpen, match=r"uid/actorRollout/3: rank 0 did not open its store at"),
    ):
        find_store(rendezvous, open_seconds=0.1)


def test_nobody_comes(rendezvous):
    with (
        pytest.raises(WorldNotOpen, match=r"within 0\.2 s"),
        open_world(1, 2, CPU, address="127.0.1.2", rendezvous=rendezvous, open_seconds=0.2),
    ):
        pass


def test_a_port_that_is_taken_is_named(rendezvous):
    with (
        socket.create_server(("127.0.1.1", rendezvous.port)),
        pytest.raises(WorldNotOpen, match=rf"127\.0\.1\.1:{rendezvous.port} for its store"),
        open_world(0, 1, CPU, address="127.0.1.1", rendezvous=rendezvous),
    ):
        pass
