import hashlib
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_trainer import durable
from ppojob_trainer.checkpoint import manifest, tensors
from ppojob_trainer.checkpoint.tensors import Shard
from ppojob_trainer.errors import DamagedCheckpoint

DTYPES = sorted(tensors._DTYPE_NAMES, key=str)

shapes = st.lists(st.integers(min_value=0, max_value=4), max_size=3).map(tuple)
named = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(shapes, st.sampled_from(DTYPES), st.integers(0, 2**31)),
    min_size=1,
    max_size=6,
)


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=stream).to(dtype)


@settings(max_examples=60, deadline=None)
@given(named)
def test_tensors_come_back_bit_for_bit(tmp_path_factory, spec):
    path = tmp_path_factory.mktemp("shard") / "file"
    given_tensors = {name: make(*parts) for name, parts in spec.items()}
    size_bytes, sha256 = tensors.write_tensors(path, given_tensors)
    data = path.read_bytes()
    assert (size_bytes, sha256) == (len(data), hashlib.sha256(data).hexdigest())
    read = tensors.read_tensors(path)
    theirs = safetensors.torch.load(data)
    assert read.keys() == theirs.keys() == given_tensors.keys()
    for name, tensor in given_tensors.items():
        for found in (read[name], theirs[name]):
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert found.reshape(-1).view(torch.uint8).tolist() == (
                tensor.reshape(-1).view(torch.uint8).tolist()
            )


def test_the_order_of_names_changes_no_byte(tmp_path: Path):
    parts = {name: make((3, 5), dtype, 1) for name, dtype in zip("zaqx", DTYPES, strict=False)}
    backwards = dict(reversed(parts.items()))
    first = tensors.write_tensors(tmp_path / "a", parts)
    assert tensors.write_tensors(tmp_path / "b", backwards) == first
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_strided_tensors_and_parameters(tmp_path: Path):
    base = torch.arange(12.0).view(3, 4)
    given_tensors = {"t": base.t(), "p": torch.nn.Parameter(base[:, 1])}
    tensors.write_tensors(tmp_path / "a", given_tensors)
    read = tensors.read_tensors(tmp_path / "a")
    assert torch.equal(read["t"], base.t())
    assert torch.equal(read["p"], base[:, 1])


def test_special_values_keep_their_bits(tmp_path: Path):
    special = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    tensors.write_tensors(tmp_path / "a", {"x": special})
    read = tensors.read_tensors(tmp_path / "a")["x"]
    assert torch.equal(read.view(torch.int32), special.view(torch.int32))


def test_tensors_larger_than_a_chunk(tmp_path: Path):
    big = torch.arange(3 * manifest.CHUNK_BYTES // 4 + 5, dtype=torch.int32)
    _, sha256 = tensors.write_tensors(tmp_path / "a", {"big": big, "small": torch.ones(3)})
    assert durable.sha256_of(tmp_path / "a")[1] == sha256
    assert torch.equal(tensors.read_tensors(tmp_path / "a")["big"], big)


def test_writing_to_a_read_tensor_changes_no_file(tmp_path: Path):
    entry = Shard.of("x/y/file", {"x": torch.ones(4)}, role="actor", rank=3).write(tmp_path)
    assert (entry.path, entry.role, entry.rank) == ("x/y/file", "actor", 3)
    tensors.read_shard(tmp_path, entry)["x"].zero_()
    assert tensors.read_shard(tmp_path, entry)["x"].tolist() == [1.0] * 4


def test_a_shorter_file_replaces_a_longer_one(tmp_path: Path):
    tensors.write_tensors(tmp_path / "a", {"x": torch.ones(1000)})
    tensors.write_tensors(tmp_path / "a", {"x": torch.ones(1)})
    assert tensors.read_tensors(tmp_path / "a")["x"].tolist() == [1.0]


@pytest.mark.parametrize("content", [b"", b"abc", (1 << 60).to_bytes(8, "little")])
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=r"^shard"):
        tensors.read_tensors(tmp_path / "a", name="shard")


def test_read_shard_verifies(tmp_path: Path):
    entry = Shard.of("a", {"x": torch.ones(64)}, role="actor", rank=0).write(tmp_path)
    path = tmp_path / "a"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"/a: got sha256 .*; it was changed"):
        tensors.read_shard(tmp_path, entry)
    os.unlink(path)
    with pytest.raises(DamagedCheckpoint, match="/a: the file is missing"):
        tensors.read_shard(tmp_path, entry)
