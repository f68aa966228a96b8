import contextlib
from pathlib import Path

import pytest
import tiny_jobs
import torch
from family_models import FAMILY_MODELS
from lone_role import pod_of
from tiny_models import save_model

from ppojob_api.run_config import RunConfig
from ppojob_trainer.deterministic import make_deterministic, nondeterministic_kernels
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.pod_environment import RankEnvironment
from ppojob_trainer.workers.rank_start import (
    DeviceFacts,
    check_device,
    device_facts,
    open_role_world,
)

TURING = DeviceFacts("Tesla T4", None, (7, 5))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    save_model(tmp_path / "model")
    changes = {"training": {"autocast": "bfloat16"}, "rollout": {"dtype": "bfloat16"}}
    return tiny_jobs.config_of(tmp_path, **changes)


def refusals(config: RunConfig, facts: DeviceFacts) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        check_device(config, "actorRollout", facts)
    return refused.value.problems


def test_a_device_that_is_too_small_is_refused_before_anything_is_loaded(config: RunConfig) -> None:
    parameters = sum(w.numel() for w in save_model(Path(config.spec.model.path)).model.parameters())
    needed = 16 * parameters + 2 * parameters
    check_device(config, "actorRollout", DeviceFacts("a GPU", needed))
    assert refusals(config, DeviceFacts("a GPU", needed - 1)) == (
        "spec.roles.actorRollout: got 1 ranks: each holds at least 0.00 GiB (policy 0.00, rollout "
        "engine 0.00), and a GPU has 0.00 GiB for it; more ranks, larger devices, a smaller model, "
        "model.lora with baseType: nf4 (frozen weights in four bits), or on GPUs roles.*.offload",
    )
    path = Path(config.spec.model.path)
    model = {"path": str(path), "lora": {"rank": 4, "alpha": 4, "baseType": "nf4"}}
    config = tiny_jobs.config_of(path.parent, model=model)
    (line,) = refusals(config, DeviceFacts("a GPU", 1))
    assert line.endswith(
        "; more ranks, larger devices, a smaller model, or on GPUs roles.*.offload"
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_moe"])
def test_four_bits_are_no_remedy_where_they_are_refused(config: RunConfig, family: str) -> None:
    made, options = FAMILY_MODELS[family]
    save_model(Path(config.spec.model.path), made, **options)
    (line,) = refusals(config, DeviceFacts("a GPU", 1))
    assert ("nf4" in line) is (family == "llama")


def test_a_gpu_without_bfloat16_is_refused_for_each_field(config: RunConfig) -> None:
    why = 'got "bfloat16": Tesla T4 has no bfloat16, which begins with compute capability 8.0;'
    assert refusals(config, TURING) == (
        f"spec.training.autocast: {why} float16 or none, or a newer GPU than one of 7.5",
        f"spec.rollout.dtype: {why} float16 or float32, or a newer GPU than one of 7.5",
    )


def test_a_newer_gpu_and_the_cpu_know_bfloat16(config: RunConfig) -> None:
    check_device(config, "actorRollout", DeviceFacts("H200", None, (9, 0)))
    check_device(config, "actorRollout", device_facts(torch.device("cpu"), 1))


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize(
    ("timeouts", "limit"),
    [({}, 1800), ({"stageSeconds": 7200}, 7200), ({"startupSeconds": 3600}, 3600)],
)
def test_a_collective_may_take_as_long_as_what_it_is_part_of(tmp_path, timeouts, limit) -> None:
    save_model(tmp_path / "model")
    environment = pod_of(tmp_path, "actorRollout", timeouts=timeouts)
    with open_role_world(environment, RankEnvironment(rank=0, local_rank=0, attempt=1)) as world:
        assert world.group is not None
        options = world.group._get_backend(torch.device("cpu")).options
        assert options._timeout.total_seconds() == limit


@pytest.mark.usefixtures("torch_as_it_was")
def test_an_engine_with_kernels_of_its_own_leaves_a_rank_strict():
    make_deterministic(torch.device("cpu"))
    with contextlib.suppress(KeyError), nondeterministic_kernels():
        assert not torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert torch.are_deterministic_algorithms_enabled()
