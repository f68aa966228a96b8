"""Adapters that begin as a part of the base weight: PiSSA and OLoRA.

Such a layer computes `W x + scale (B A x - B0 A0 x)`, where B0 and A0 are the frozen initial B and
A. That is PEFT's layer, whose weight is `W - scale B0 A0`, but W stays as it is in the files. A and
B hold both: A is [A; A0], and B is [B, -B0], of twice the rank. So checkpoints, engines, merged
weights and PEFT's folders have adapters of that rank of the unchanged base.
"""

import torch
from torch import Tensor

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.parallel.boxes import broadcast_, detached, full_tensor, is_first_rank


def start_of(
    weight: Tensor, lora: LoraSpec, seed: int, *, is_transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the initial A (2 rank, in) and B (out, 2 rank) of a weight (out, in), or (in, out).

    A collective if it is sharded. The first of its ranks decomposes it for all, as the bits depend
    on libraries and threads.
    """
    whole = full_tensor(detached(weight)).float()
    whole = whole.mT if is_transposed else whole
    rows, columns = whole.shape
    a, b = whole.new_empty(lora.rank, columns), whole.new_empty(rows, lora.rank)
    if is_first_rank(weight):
        a, b = (part.contiguous() for part in part_of_base(whole, lora, seed))
    for part in a, b:
        broadcast_(part, weight)
    return torch.cat([a, a]), torch.cat([b, -b], dim=1)


def part_of_base(weight: Tensor, lora: LoraSpec, seed: int) -> tuple[Tensor, Tensor]:
    """Return the initial A (rank, in) and B (out, rank) of a weight (out, in), float32.

    PiSSA (Meng et al. 2024, arXiv:2404.02948): `scale B A` has the largest singular values;
    with `niter` by a randomized decomposition (Halko et al. 2009, arXiv:0909.4061), whose stream
    has this seed. OLoRA (Büyükakyüz 2024, arXiv:2406.01775): B A has the first columns of Q and
    rows of R of W = Q R.
    """
    rank = lora.rank
    if lora.init == "olora":
        q, r = torch.linalg.qr(weight)
        return r[:rank], q[:, :rank]
    if lora.init == "pissa":
        u, values, v = torch.linalg.svd(weight, full_matrices=False)
    else:
        devices = [weight.device] if weight.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            steps = int(lora.init.rpartition("_")[2])
            u, values, columns = torch.svd_lowrank(weight, rank, niter=steps)
        v = columns.mT
    root = (values[:rank] / lora.scale).sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root
