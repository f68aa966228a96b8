from collections.abc import Iterator

import pytest
import torch
from queue_link import QueueLink, Queues, all_at_once

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.link import receive_tensors, send_tensors

TENSORS = {
    "embedding": torch.randn(30, 7),
    "scale": torch.tensor(float("nan")),
    "odd": torch.arange(3, dtype=torch.int8),
    "half": torch.randn(5).to(torch.bfloat16),
    "nothing": torch.empty(0, 4),
    "across": torch.randn(6, 4).T,
    "mask": torch.tensor([True, False]),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_bits = (
        one.contiguous()
        .view(-1)
        .view(torch.uint8)
        .equal(other.contiguous().view(-1).view(torch.uint8))
    )
    return one.dtype == other.dtype and one.shape == other.shape and same_bits


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_every_receiver_gets_every_bit(bucket_bytes: int) -> None:
    def send(link: QueueLink) -> None:
        send_tensors(link, [1, 2], TENSORS.items(), bucket_bytes)

    def receive(link: QueueLink) -> dict[str, torch.Tensor]:
        return dict(receive_tensors(link, 0))

    shared = Queues(3)
    _, *arrived = all_at_once(shared, send, receive, receive)
    for got in arrived:
        assert list(got) == list(TENSORS)
        assert all(same(got[name], tensor) for name, tensor in TENSORS.items())
    assert shared.largest_bytes <= max(bucket_bytes, TENSORS["embedding"].nbytes, 400)


def test_a_lost_receiver_does_not_end_what_all_ranks_do_together() -> None:
    drawn = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in TENSORS.items():
            drawn.append(name)  # a collective of the policy's ranks
            yield name, tensor

    with pytest.raises(ChannelLost):
        send_tensors(QueueLink(Queues(2, dead=frozenset({1})), 0), [1], tensors(), bucket_bytes=1)
    assert drawn == list(TENSORS)


def test_a_rank_that_serves_nobody_draws_them_too() -> None:
    tensors = iter(TENSORS.items())
    send_tensors(QueueLink(Queues(1), 0), [], tensors)
    assert list(tensors) == []
