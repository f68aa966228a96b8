from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from ppojob_trainer.engine.optimizer import clip_gradients
from ppojob_trainer.parallel.boxes import Box, Pieces, box_of, is_first_holder
from ppojob_trainer.parallel.world import World


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Box]:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    ends = [sorted(draw(st.tuples(*[st.integers(0, size)] * 2))) for size in shape * 2]
    sides = ends[: len(shape)], ends[len(shape) :]
    one, other = (
        Box(shape, tuple(low for low, _ in side), tuple(high for _, high in side)) for side in sides
    )
    return one, other


def marked(box: Box) -> torch.Tensor:
    marks = torch.zeros(box.shape, dtype=torch.bool)
    marks[box.slices] = True
    return marks


@given(boxes())
def test_what_two_boxes_share_is_cut_out_of_either_part(pair):
    one, other = pair
    values = torch.arange(marked(one).numel()).reshape(one.shape)
    shared = one.intersect(other)
    both = marked(one) & marked(other)
    assert both.sum() == (shared.numel if shared else 0)
    if shared is not None:
        assert torch.equal(marked(shared), both)
        for box in pair:
            part = values[box.slices]
            assert part.shape == box.local_shape
            assert torch.equal(part[shared.slices_in(box)], values[shared.slices])


@contextmanager
def pretended(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("shape", [(6, 4), (5, 3), (1, 2)], ids=str)
@pytest.mark.parametrize(
    "placements",
    [(Shard(0), Shard(1)), (Shard(1), Replicate()), (Replicate(), Shard(0)), (Shard(0), Shard(0))],
    ids=str,
)
def test_the_boxes_of_first_holders_cover_a_tensor_once(shape, placements):
    """Of four ranks, two by two; a part that two of them hold counts at the first of them."""
    counts = torch.zeros(shape)
    for rank in range(4):
        with pretended(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            tensor = DTensor.from_local(
                torch.empty(0), mesh, placements, run_check=False, shape=torch.Size(shape),
                stride=(shape[1], 1),
            )  # fmt: skip
            if is_first_holder(tensor):
                counts[box_of(tensor).slices] += 1
    assert torch.equal(counts, torch.ones(shape))


@pytest.mark.parametrize("placement", [Shard(0), Shard(1)], ids=str)
def test_ranks_have_a_part_of_each_piece(placement: Shard) -> None:
    """Two shards of two tensor ranks, of a tensor of 4, 2 and 2 rows, or columns."""
    pieces = Pieces(placement.dim, (4, 2, 2), 2)
    values = torch.arange(40).view(8, 5) if placement.dim == 0 else torch.arange(40).view(5, 8)
    counts, first = torch.zeros(values.shape), set[int]()
    for rank in range(4):
        with pretended(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            by_shards = _StridedShard(0, split_factor=2) if placement.dim == 0 else Shard(0)
            tensor = DTensor.from_local(
                torch.empty(0), mesh, (by_shards, placement), run_check=False,
                shape=values.shape, stride=values.stride(),
            )  # fmt: skip
            tensor.pieces = pieces
            box = box_of(tensor)
            part = box.of(values)
            assert part.shape == box.local_shape
            for plain, own in box.plain():
                counts[plain.slices] += 1
                assert torch.equal(part[own], values[plain.slices])
            if rank % 2 == 0:  # the first of the tensor ranks
                first |= set((part // 5 if placement.dim == 0 else part % 8).flatten().tolist())
    assert torch.equal(counts, torch.ones(values.shape))
    assert first == {0, 1, 4, 6}


@pytest.mark.parametrize(("rank", "norm"), [(0, 5.0), (1, 3.0)])
def test_a_gradient_that_two_ranks_hold_counts_at_the_first(rank: int, norm: float) -> None:
    """Each rank's own share of the norm: that of the cut one, and of the other at rank 0 alone."""
    with pretended(rank, 2):
        mesh = init_device_mesh("cpu", (2,))
        parameters = []
        for placement, value in ((Shard(0), 3.0), (Replicate(), 4.0)):
            local = torch.tensor([value])
            weight = DTensor.from_local(local, mesh, (placement,), run_check=False)
            weight.grad = DTensor.from_local(local, mesh, (placement,), run_check=False)
            parameters.append(weight)
        assert clip_gradients(parameters, 0.0, World.alone()) == norm
