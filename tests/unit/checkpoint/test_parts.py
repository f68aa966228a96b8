import json
from pathlib import Path

import pytest
import torch

from ppojob_trainer.checkpoint.files import FileEntry, sha256_of
from ppojob_trainer.checkpoint.parts import read_parts
from ppojob_trainer.checkpoint.tensors import write_tensors

WHOLE = torch.arange(6.0).view(2, 3)


@pytest.fixture
def entries(tmp_path: Path) -> list[FileEntry]:
    """A tensor of two rows, cut over two ranks."""
    written = []
    for rank in range(2):
        path = tmp_path / f"{rank}.safetensors"
        extent = {"shape": [2, 3], "start": rank, "stop": rank + 1}
        part = WHOLE[rank : rank + 1].contiguous()
        write_tensors(path, {"w": part}, metadata={"extents": json.dumps({"w": extent})})
        size_bytes, sha256 = sha256_of(path)
        written.append(
            FileEntry(path=path.name, size_bytes=size_bytes, sha256=sha256, role="r", rank=rank)
        )
    return written


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_the_same_tensor(size, entries, tmp_path) -> None:
    """With more ranks than rows some of them have no part; the commit is good all the same."""
    parts = [read_parts(tmp_path, entries, rank, size)["w"] for rank in range(size)]
    assert torch.equal(torch.cat(parts), WHOLE)
