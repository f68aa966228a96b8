"""The ranks of the worlds in `tests/unit/parallel/test_ranks_train.py`.

Run: `python training_ranks.py FOLDER cover|whole [LAYOUT...]`. The folder holds what `save_models`
writes and checkpoints of one rank; results go into `<LAYOUT>/<case>-<rank>.safetensors`. When all
worlds have been, and not some alone, some come again and take up checkpoints of others. Ranks are
forked: PyTorch is imported once for all of them.

`python training_ranks.py FOLDER gpu LAYOUT...`: the few cases of `ON_GPUS`, by NCCL.
"""

import faulthandler
import functools
import gc
import multiprocessing
import socket
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from traceback import format_exc

import one_gpu
import torch
from torch import Tensor
from training_cases import ALL_LAYOUTS, CASES, LAYOUTS, run_case
from training_cover import AGAIN, COVER, ON_GPUS, SAVED, WHOLE, Cover
from training_scenarios import SCENARIOS, run_foreign_checkpoints

from ppojob_trainer.checkpoint.tensors import read_tensors, write_tensors
from ppojob_trainer.deterministic import make_deterministic
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import Rendezvous, World, open_world

Work = Callable[[Path, Path, World], None]
"""Writes into the folder of a layout what its ranks find with the models of another one."""


def results(folder: Path, layout: str, name: str, rank: int = 0) -> dict[str, Tensor]:
    """What a rank of a layout has left behind under a name."""
    return read_tensors(folder / layout / f"{name}-{rank}.safetensors")


def under(found: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by what stands behind."""
    return {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}


@functools.cache
def alone(folder: Path, name: str) -> dict[str, Tensor]:
    """What one rank finds for a case."""
    return run_case(CASES[name].alone, folder, World.alone())


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def run_rank(
    rank: int, dims: ParallelDims, port: int, results: Path, work: Work, leave: Barrier, kind: str
) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, rank % torch.cuda.device_count())
        one_gpu.become_a_host()
    make_deterministic(device)
    rendezvous = Rendezvous("127.0.1.1", port, "uid/actorRollout/0")
    address = f"127.0.1.{rank + 1}"
    with open_world(
        rank, dims.size, device, dims=dims, address=address, rendezvous=rendezvous
    ) as world:
        try:
            work(results, results.parent, world)
            # A gloo group that is closed resets its connections, whatever others still read there.
            leave.wait(timeout=60)
        except BaseException:  # before the group is closed, which fails the others
            told = f"{results.name}, rank {rank}:\n{format_exc()}"
            (results / f"failure-{rank}").write_text(told)
            raise


def write_results(results: Path, root: Path, world: World, *, cover: Cover) -> None:
    for name in cover.scenarios_of(results.name):
        write_tensors(results / f"{name}-{world.rank}.safetensors", SCENARIOS[name](root, world))
    for name, case in cover.cases_of(results.name).items():
        write_tensors(results / f"{name}-{world.rank}.safetensors", run_case(case, root, world))
    repeated = run_case(CASES["small_micro_batches"], root, world)
    write_tensors(results / f"again-{world.rank}.safetensors", repeated)


def read_by(layout: str, cover: Cover) -> list[tuple[str, str]]:
    """The checkpoints of others that a layout takes up: cases and layouts."""
    return [
        (name, writer) for name in SAVED for writer in LAYOUTS if cover.reads(layout, name, writer)
    ]


def write_foreign(results: Path, root: Path, world: World, *, cover: Cover) -> None:
    path = results / f"foreign_checkpoints-{world.rank}.safetensors"
    write_tensors(path, run_foreign_checkpoints(root, world, read_by(results.name, cover)))


def write_on_gpus(results: Path, root: Path, world: World) -> None:
    cases = ON_GPUS[results.name]
    for name in [*cases, *AGAIN]:
        found = {key: value.cpu() for key, value in run_case(cases[name], root, world).items()}
        path = results / f"{name}-{world.rank}.safetensors"
        if path.exists():
            path = results / f"again-{path.name}"
        write_tensors(path, found)


def run_world(results: Path, dims: ParallelDims, work: Work, kind: str = "cpu") -> None:
    """Run all ranks of a layout, each a fork; where any fails, say what the first one met."""
    results.mkdir(exist_ok=True)
    with socket.create_server(("127.0.1.1", 0)) as server:
        port = server.getsockname()[1]
    gc.freeze()
    forks = multiprocessing.get_context("fork")
    leave = forks.Barrier(dims.size)
    # The last rank first: whoever comes early waits for rank 0.
    ranks = {
        rank: forks.Process(
            target=run_rank, args=(rank, dims, port, results, work, leave, kind), daemon=True
        )
        for rank in reversed(range(dims.size))
    }
    for process in ranks.values():
        process.start()
    for process in ranks.values():
        process.join()
    codes = [process.exitcode or 0 for process in ranks.values()]
    if any(codes):
        told = sorted(results.glob("failure-*"), key=lambda path: path.stat().st_mtime_ns)
        first = told[0].read_text() if told else results.name
        sys.exit(f"{first}\nexit codes of ranks {list(ranks)}: {codes}")


def main(folder: Path, tried: str, *selected: str) -> None:
    if tried == "gpu":
        for layout in selected:
            run_world(folder / layout, ALL_LAYOUTS[layout], write_on_gpus, "cuda")
        return
    cover = {"cover": COVER, "whole": WHOLE}[tried]
    for layout in selected or cover.worlds:
        run_world(folder / layout, LAYOUTS[layout], functools.partial(write_results, cover=cover))
    readers = [layout for layout in cover.worlds if read_by(layout, cover) and not selected]
    for layout in readers:
        run_world(folder / layout, LAYOUTS[layout], functools.partial(write_foreign, cover=cover))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
