import itertools
import json
from pathlib import Path

import msgspec
import pytest
import torch

from ppojob_trainer.checkpoint.tensors import read_parts, write_tensors
from ppojob_trainer.durable import sha256_of
from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.parallel.boxes import Box
from ppojob_trainer.rpc.messages.saving import FileEntry

WHOLE = torch.arange(20.0).view(5, 4)
SHAPE = tuple(WHOLE.shape)


def grid(rows: list[int], columns: list[int]) -> list[Box]:
    """The boxes between these cuts."""
    return [
        Box(SHAPE, (top, left), (bottom, right))
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]


LAYOUTS = {
    "whole": grid([0, 5], [0, 4]),
    "two ranks": grid([0, 3, 5], [0, 4]),
    "more ranks than rows": [*grid([0, 1, 2, 3, 4, 5], [0, 4]), Box(SHAPE, (5, 0), (5, 4))],
    "columns": grid([0, 5], [0, 2, 4]),
    "rows and columns": grid([0, 2, 5], [0, 3, 4]),
    "held by two ranks": grid([0, 3, 5], [0, 4]) * 2,
}


def written(folder: Path, layout: list[Box]) -> list[FileEntry]:
    """A tensor as the ranks of a layout write it, with a scalar that all of them hold."""
    entries = []
    for rank, box in enumerate(layout):
        part = WHOLE[box.slices].contiguous()
        stored = {"shape": box.shape, "start": box.start, "stop": box.stop}
        entries.append(
            entry_of(folder, rank, part, {} if len(layout) == 1 else {"boxes": {"w": stored}})
        )
    return entries


def entry_of(folder: Path, rank: int, part: torch.Tensor, metadata: dict[str, object]) -> FileEntry:
    path = folder / f"{rank}.safetensors"
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    write_tensors(path, {"w": part, "step": torch.tensor(3.0)}, metadata=texts)
    size_bytes, sha256 = sha256_of(path)
    return FileEntry(path=path.name, size_bytes=size_bytes, sha256=sha256, role="r", rank=rank)


@pytest.mark.parametrize("reader", LAYOUTS)
@pytest.mark.parametrize("writer", LAYOUTS)
def test_any_layout_reads_what_any_layout_wrote(writer: str, reader: str, tmp_path: Path) -> None:
    entries = written(tmp_path, LAYOUTS[writer])
    for rank, box in enumerate(LAYOUTS[reader]):
        parts = read_parts(tmp_path, entries, {"w": box, "step": Box.whole(())}, rank=rank)
        assert torch.equal(parts["w"], WHOLE[box.slices])
        assert parts["step"] == 3.0
        assert read_parts(tmp_path, entries, {"w": box, "of no file": box}, rank=rank).keys() == {
            "w"
        }


def test_a_rank_reads_its_own_file_alone_under_the_same_layout(tmp_path: Path) -> None:
    layout = LAYOUTS["rows and columns"]
    entries = written(tmp_path, layout)
    for rank, box in enumerate(layout):
        rotten = [
            entry if entry.rank == rank else msgspec.structs.replace(entry, sha256="0" * 64)
            for entry in entries
        ]
        parts = read_parts(tmp_path, rotten, {"w": box}, rank=rank)
        assert torch.equal(parts["w"], WHOLE[box.slices])
        with pytest.raises(DamagedCheckpoint, match="got sha256"):
            read_parts(tmp_path, rotten, None, rank=rank)


def test_a_part_that_nobody_wrote_is_missed(tmp_path: Path) -> None:
    entries = written(tmp_path, LAYOUTS["rows and columns"])
    with pytest.raises(DamagedCheckpoint, match=r"w: got 18 of its 20 elements"):
        read_parts(tmp_path, entries[:1] + entries[2:], None, rank=0)
