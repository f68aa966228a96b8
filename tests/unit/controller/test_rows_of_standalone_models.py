"""Rows at a role in ranks of its own: what it has filled in outlives the controller."""

import ipaddress
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ppojob_api import contract
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import MeetingPoint, World, open_world
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.training import Forward
from ppojob_trainer.rpc.methods import FORWARD
from ppojob_trainer.rpc.wire import RequestId
from ppojob_trainer.workers.batch_rows import BatchRows, GroupCosts
from ppojob_trainer.workers.model_stages import ModelStages
from ppojob_trainer.workers.row_channels import RowChannels, batch_index

LENGTHS = [2, 1, 3, 1]
_stores = itertools.count()
PROMPTS = [PromptRow(number, (1, 2), "p", "tiny", "1", {}) for number in range(2)]


@dataclass
class Reference:
    """Says of every token how many passes there have been."""

    passes: int = 0

    def forward(self, rows: BatchRows) -> PassStatistics:
        self.passes += 1
        rows.fill("ref_logprobs", self._say)
        return PassStatistics()

    def _say(self, staged: Experience) -> TokenOutputs:
        return (torch.full((staged.num_tokens,), float(self.passes)),)


@dataclass
class Sides:
    """The ranks of both roles, and controllers that come and go."""

    role_of: Callable[..., RoleGroup]
    roles_of: Callable[..., Roles]
    store_host: str  # of the owners
    owner: ModelStages  # of the rank that owns the rows
    owners: RoleGroup  # its role
    model: Reference = field(default_factory=Reference)  # the consumer's

    def consumers(self, epoch: int) -> RoleGroup:
        """The other role with ranks of an epoch, which have seen nothing yet."""
        stages = stages_of(World.alone(), self.store_host, owns_rows=False)
        stages.frozen["reference"] = self.model
        return self.role_of("reference", stages.routes(), epoch=epoch, channels=True)

    def pass_over(
        self,
        consumers: RoleGroup,
        *,
        controller: int,
        step: int = 1,
        rewinds: int = 0,
        dies: bool = False,
    ) -> None:
        """What a controller does for a forward pass; one that dies leaves the column there."""
        roles = self.roles_of(self.owners, consumers, epoch=controller, rewinds=rewinds)
        channels = RoleChannels(roles, self.owners, "uid")
        batch = Batch("train", PROMPTS, samples=2, owners=1, lengths=LENGTHS)
        channels.move_rows(consumers, batch, step)
        id_ = RequestId(0, step, "forward/reference")
        roles.ask_all(consumers, FORWARD, Forward("reference"), id_)
        if not dies:
            channels.move_columns(consumers, batch, step, ["ref_logprobs"], to_owners=True)

    @property
    def column(self) -> list[float]:
        return self.owner.rows.mine.ref_logprobs.tolist()


def stages_of(world: World, store_host: str, *, owns_rows: bool) -> ModelStages:
    costs = GroupCosts(linear=1, share_prompts=True)
    alone = ParallelDims()
    channels = RowChannels(
        world, owns_rows, store_host, lambda _: store_host, costs, lambda _: alone
    )
    return ModelStages(Path(), channels)


@pytest.fixture
def sides(role_of, roles_of) -> Iterator[Sides]:
    # A store of each test's own: the port is fixed, and one that is closed keeps it for a while.
    number = 8 * os.getpid() + next(_stores)
    host = str(ipaddress.IPv4Address("127.128.0.0") + number % (1 << 23))
    meeting = MeetingPoint(host, contract.PORT_STORE, "uid/actorRollout/1")
    with open_world(0, 1, torch.device("cpu"), address=host, meeting=meeting) as world:
        owner = stages_of(world, host, owns_rows=True)
        index = Batch("train", PROMPTS, samples=2, owners=1, lengths=LENGTHS).index
        owner.place(batch_index(index), rows())
        owners = role_of("actorRollout", owner.routes(), channels=True)
        yield Sides(role_of, roles_of, host, owner, owners)


def rows() -> Experience:
    tokens = sum(LENGTHS)
    return Experience(
        prompts=[torch.tensor([1, 2])] * 2,
        row_groups=torch.tensor([0, 0, 1, 1]),
        response_tokens=torch.arange(tokens),
        lengths=torch.tensor(LENGTHS),
        mask=torch.ones(tokens, dtype=torch.bool),
        rollout_logprobs=torch.zeros(tokens),
    )


def test_a_pass_that_is_done_is_not_done_again_for_a_controller_that_came_back(sides: Sides):
    consumers = sides.consumers(epoch=1)
    sides.pass_over(consumers, controller=1, dies=True)
    for controller in (2, 3):
        sides.pass_over(consumers, controller=controller)
        assert sides.column == [1.0] * sum(LENGTHS)
    assert sides.model.passes == 1


@pytest.mark.parametrize("where", [{"step": 2}, {"rewinds": 1}])
def test_rows_of_another_step_or_before_a_rewind_are_passed_over_anew(
    sides: Sides, where: dict[str, int]
):
    """The same prompts and lengths: only their names tell the batches apart."""
    consumers = sides.consumers(epoch=1)
    sides.pass_over(consumers, controller=1)
    sides.pass_over(consumers, controller=2, **where, dies=True)
    sides.pass_over(consumers, controller=3, **where)
    assert sides.column == [2.0] * sum(LENGTHS)
    assert sides.model.passes == 2
