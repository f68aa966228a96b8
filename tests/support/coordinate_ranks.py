"""Ranks of two roles whose data-parallel coordinates have several ranks, for test_batch_rows.py.

Every rank of the first role made some of the rows; the second role gets them over a channel. The
processes are forked from one that has imported torch already, and answer through a pipe.
"""

import ctypes
import os
import signal
from collections.abc import Sequence
from ipaddress import IPv4Address
from multiprocessing.connection import Connection
from typing import Any

import torch
from link_member import forks

from ppojob_api import contract
from ppojob_trainer.parallel.collectives import sum_over_data
from ppojob_trainer.parallel.dims import WITHIN, ParallelDims
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.parallel.world import Rendezvous, World, open_world
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rows import MoveColumns, OpenChannel
from ppojob_trainer.workers.batch_rows import BatchRows, GroupCosts
from ppojob_trainer.workers.row_channels import RowChannels

CPU = torch.device("cpu")
COSTS = GroupCosts(linear=10, share_prompts=True)
INDEX = BatchIndex(
    prompt_lengths=(3, 2, 4, 1, 2),
    lengths=(4, 0, 7, 1, 2, 2, 9, 3, 1, 5),
    samples=2,
    owners=(0, 1, 2, 3, 0),
)
MINI_BATCH = (3, 0, 1, 4)
CONSUMERS = ParallelDims(replicate=2, tensor=2)
Hosts = dict[str, IPv4Address]
"""The address of the first rank of each role; those of the others follow."""


def own_hosts() -> Hosts:
    """Loopback addresses that no other process of the tests takes."""
    first = IPv4Address("127.128.0.0") + os.getpid() % (1 << 18) * 16
    return {"owner": first, "critic": first + 8}


def batch() -> Experience:
    tokens = torch.arange(sum(INDEX.lengths))
    return Experience(
        prompts=[torch.arange(n) + 1000 * p for p, n in enumerate(INDEX.prompt_lengths)],
        row_groups=torch.arange(INDEX.num_groups).repeat_interleave(INDEX.samples),
        response_tokens=tokens,
        lengths=torch.tensor(INDEX.lengths, dtype=torch.int64),
        mask=tokens % 3 > 0,
        rollout_logprobs=-tokens / 7.0,
        advantages=tokens / 11.0,
    )


def groups(positions: Sequence[int]) -> Experience:
    samples = INDEX.samples
    return batch().select([p * samples + s for p in positions for s in range(samples)])


def said_of(rows: Experience) -> torch.Tensor:
    """What a model says of tokens: something else of each."""
    return torch.sin(rows.response_tokens.float())


def told(rows: Experience, *columns: str) -> dict[str, Any]:
    return {
        "prompts": [prompt.tolist() for prompt in rows.prompts],
        "lengths": rows.lengths.tolist(),
        **{name: getattr(rows, name).tolist() for name in ("response_tokens", "mask", *columns)},
    }


def rows_at(world: World, index: BatchIndex, mine: Experience) -> BatchRows:
    within = Link(world.along(*WITHIN), CPU)
    return BatchRows(index, mine, Link(world.group, CPU), COSTS, world.dims, within)


def channels_of(world: World, hosts: Hosts, address: str, role: str) -> RowChannels:
    found = RowChannels(
        world, role == "critic", address, lambda host: host, COSTS, lambda _: CONSUMERS
    )
    found.open(OpenChannel(role, "k", 4, CONSUMERS.size, str(hosts["owner"]), "uid/owner/1"))
    return found


def back(role: str) -> MoveColumns:
    return MoveColumns(role, INDEX, ["values"], to_owners=True)


def own(world: World, hosts: Hosts, address: str) -> dict[str, Any]:
    mine = groups(INDEX.owned_by(world.rank))
    rows = rows_at(world, INDEX, mine)
    staged = rows.mini_batch(MINI_BATCH, ("advantages",))
    filled, _ = rows.fill("ref_logprobs", lambda some: (said_of(some),))
    channels = channels_of(world, hosts, address, "critic")
    channels.move_rows("critic", INDEX, mine)
    channels.move_columns(back("critic"), mine)
    return {
        "staged": told(staged, "advantages"),
        "filled": told(filled),
        "mine": told(mine, "ref_logprobs", "values"),
        "whole": rows.gather(["ref_logprobs"])[0].tolist(),
        "counted": sum_over_data(world, [filled.num_tokens]),
        "computed": rows.tokens_computed(),
    }


def consume(world: World, hosts: Hosts, address: str) -> dict[str, Any]:
    channels = channels_of(world, hosts, address, "owner")
    index, mine = channels.move_rows("owner", INDEX, None)
    rows = rows_at(world, index, mine)
    filled, _ = rows.fill("values", lambda some: (said_of(some) + 1.0,))
    channels.move_columns(back("owner"), rows.mine)
    return {"owners": index.owners, "mine": told(mine), "filled": told(filled)}


def serve(connection: Connection, role: str, rank: int, dims: ParallelDims, hosts: Hosts) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the tests
    torch.set_num_threads(1)
    address = str(hosts[role] + rank)
    rendezvous = Rendezvous(str(hosts[role]), contract.PORT_STORE, f"uid/{role}/1")
    with open_world(
        rank, dims.size, CPU, dims=dims, address=address, rendezvous=rendezvous
    ) as world:
        act = own if role == "owner" else consume
        connection.send(act(world, hosts, address))
        connection.recv()  # stores live until all have answered


def run(dims: ParallelDims) -> dict[str, list[dict[str, Any]]]:
    """What the ranks of both roles have to say, under a layout of the four owners."""
    hosts = own_hosts()
    context = forks()
    started = []
    for role, layout in (("owner", dims), ("critic", CONSUMERS)):
        for rank in range(layout.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, role, rank, layout, hosts))
            process.start()
            theirs.close()
            started.append((role, process, ours))
    try:
        answers: dict[str, list[dict[str, Any]]] = {"owner": [], "critic": []}
        for role, _, connection in started:
            assert connection.poll(300), f"no answer of a rank of {role}"
            answers[role].append(connection.recv())
        for _, _, connection in started:
            connection.send(None)
        for _, process, _ in started:
            process.join(60)
    finally:
        for _, process, _ in started:
            process.kill()
    return answers
