from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_jobs import NOW, SETTINGS, job_manifest, make_job
from safetensors.numpy import save_file

from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.plan import cluster_lines, memory_lines
from ppojob_operator.plan import plan
from ppojob_operator.state import Create, CreateKeys, Observed

GPUS = {
    "roles": {"actorRollout": {"replicas": 2, "gpusPerReplica": 2}},
    "algorithm": {"type": "grpo", "promptsPerStep": 8, "samplesPerPrompt": 2},
}


def config(**changes: Any) -> RunConfig:
    written = job_manifest(**changes)
    written["metadata"] = {"name": "sum", "namespace": "lab"}
    return resolve(PPOJob.model_validate(written))


def made(**changes: Any) -> set[tuple[str, str]]:
    """Kinds and names of what the operator makes of the same job."""
    actions = [
        one for wave in plan(make_job(**changes), Observed(), SETTINGS, NOW).waves for one in wave
    ]
    manifests = [one.manifest for one in actions if isinstance(one, Create)]
    for one in actions:
        if isinstance(one, CreateKeys):
            manifests += one.templates.values()
    return {(one["kind"], one["metadata"]["name"]) for one in manifests}


@pytest.mark.parametrize("changes", [{}, GPUS, {"checkpoint": {"volume": {"size": "1Gi"}}}])
def test_every_object_is_named(changes: dict[str, Any]) -> None:
    lines = list(cluster_lines(config(**changes)))
    wanted = made(**changes)
    told = {
        (line.split()[0], name.rstrip(","))
        for line in lines
        if line[0].isupper()
        for name in line.split()[1:]
    }
    by_kind = {kind for kind, _ in wanted}
    assert {pair for pair in told if pair[0] != "ConfigMap"} == {
        pair for pair in wanted if pair[0] != "ConfigMap"
    }
    assert ("ConfigMap", "sum-config-...") in told
    assert "ConfigMap" in by_kind
    assert lines[-1].startswith(f"{len(wanted)} objects of the PPOJob, ")


def test_pods_tell_what_they_ask_for() -> None:
    pods = [{"memory": "4Gi"}, {"roles": ["actorRollout"], "gpuResource": "example.com/gpu"}]
    lines = list(cluster_lines(config(**GPUS, pods=pods)))
    assert lines[:3] == [
        "controller    1 pod of 100m CPU, memory 4Gi",
        "actorRollout  2 pods of 2 CPU, 2 example.com/gpu, memory 4Gi",
        "reward        1 pod of 1 CPU, memory 4Gi",
    ]
    assert "memory without limit" in next(cluster_lines(config()))


def test_a_queue_is_named_with_what_it_needs() -> None:
    lines = list(cluster_lines(config(scheduling={"type": "volcano"})))
    assert any("and for volcano: PodGroup.scheduling.volcano.sh; it needs" in one for one in lines)


def test_a_job_that_a_cluster_refuses_has_the_line_of_the_operator() -> None:
    lines = list(cluster_lines(config(checkpoint={"every": 2})))
    assert lines[0] == "no objects: an operator refuses this file"
    assert lines[1].startswith("spec.checkpoint.volume: got nothing: ")


def test_memory_by_the_sizes_of_the_weights(tmp_path: Path) -> None:
    save_file({"w": np.zeros((2**12, 2**13), np.float16)}, tmp_path / "model.safetensors")
    model = {"path": str(tmp_path)}
    # 2**25 weights: 0.5 GiB with gradient and moments, over four ranks; 1/16 GiB in the engine.
    assert list(memory_lines(config(**GPUS, model=model))) == [
        "actorRollout  policy 0.12, rollout engine 0.06 GiB a GPU"
    ]
    assert list(memory_lines(config(model=model))) == [
        "actorRollout  policy 0.50, rollout engine 0.06 GiB a rank"
    ]


def test_quantised_weights_take_the_memory_of_what_they_become(tmp_path: Path) -> None:
    shape = (8, 2**12, 2**5, 16)  # bytes of two numbers
    parts = {"w_blocks": np.zeros(shape, np.uint8), "w_scales": np.zeros(shape[:-1], np.uint8)}
    save_file(parts, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    assert list(memory_lines(config(model={"path": str(tmp_path)}))) == [
        f"{tmp_path} holds mxfp4 weights, which are dequantised while they are loaded",
        "actorRollout  policy 0.50, rollout engine 0.06 GiB a rank",
    ]


def test_a_model_that_is_elsewhere() -> None:
    assert list(memory_lines(config())) == [
        "not known of /models/tiny: no weights of it on this machine"
    ]
