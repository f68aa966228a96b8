"""Jobs with tools and a retriever in pods: the numbers of one machine, whoever of them is lost."""

import json
from pathlib import Path
from typing import Any

import agent_jobs
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import training_jobs
from cluster_access import Cluster
from pod_faults import inject_fault, of_job
from training_jobs import MOUNT, Volume

from ppojob_api.well_known import LABEL_ROW_OF

pytestmark = [pytest.mark.cluster, pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

TALKING, SEARCHING = Path(MOUNT) / "talking", Path(MOUNT) / "searching"
COMMANDING = Path(MOUNT) / "commanding"
ROLE_OF = {"talk": "tools", "search": "retriever"}
STEPS = {"talk": 16, "search": 60}
"""Of a few seconds, and of one: enough to be hit three times."""
BLOWS = ("kill container", "delete pod", "evict")


@pytest.fixture(scope="module")
def agent_volume(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Volume:
    """All models, a tool that takes its time, an index, and the claim `work`."""
    folder = tmp_path_factory.mktemp("agents")
    for name in (TALKING.name, SEARCHING.name, COMMANDING.name):
        (folder / name).mkdir()
    talking = agent_jobs.make_talking_folder(folder / TALKING.name)
    agent_jobs.write_tools(talking, seconds=0.1)
    agent_jobs.make_searching_folder(folder / SEARCHING.name)
    agent_jobs.make_commanding_folder(folder / COMMANDING.name, folder="/tmp")
    return training_jobs.claimed(cluster, folder)


def job(kind: str, name: str) -> dict[str, Any]:
    """One job calls the tool `add`, the other searches."""
    if kind == "talk":
        source = {"path": str(TALKING / "tools.py"), "function": "add"}
        folder, sections = TALKING, agent_jobs.talking(TALKING, source)
    else:
        index = {"index": str(SEARCHING / "index")}
        folder, sections = SEARCHING, agent_jobs.searching(SEARCHING, {}, retriever=index)
    sections["rollout"] |= {"engine": "vllm", "kvCacheGib": 0.25}
    own = {name: training_jobs.SECTIONS[name] for name in ("pods", "timeouts", "checkpoint")}
    manifest = tiny_jobs.make_manifest(
        folder, **{**sections, **own, "steps": {"total": STEPS[kind]}}
    )
    return {**manifest, "metadata": {"name": name}}


@pytest.mark.parametrize("kind", ROLE_OF)
def test_a_lost_pod_costs_no_step(kind: str, cluster: Cluster, release: str, agent_volume: Volume):
    if not cluster.is_ours:
        pytest.skip("the pods' processes are in kind's container")
    alone = training_jobs.ran_alone(cluster, agent_volume, job(kind, f"{kind}-alone"))
    cluster.apply(job(kind, kind))
    agent_volume.wait_for_step(kind, 2)
    role = ROLE_OF[kind]
    hit = f"{kind}-{role}-0"
    for how in BLOWS:
        before = inject_fault(cluster, how, kind, role)
        agent_volume.wait_for_step(kind, agent_volume.steps_done(kind) + 2)
        after = of_job(cluster, kind)
        assert after.pop(hit) != before.pop(hit)
        assert after == before, how
    policy = json.loads(cluster.read("networkpolicy", f"{kind}-{role}", "{.spec}"))
    assert policy["policyTypes"] == ["Egress"]
    assert policy.get("egress", []) == [], "it connects to nothing"
    assert policy["podSelector"]["matchLabels"]["ppojob.dev/role"] == role
    training_jobs.wait_for_phase(cluster, kind, "Succeeded")
    done = agent_volume.run_folder(kind)
    assert run_folders.result(done) == run_folders.result(alone)
    journal = (done / "checkpoints" / "journal.jsonl").read_text()
    assert journal.count('"rewound"') == 1, "of the start alone"


def test_rows_have_pods_of_their_own(
    cluster: Cluster, release: str, agent_volume: Volume, base_image: str
):
    containers = {"image": base_image, "cpu": "20m", "memory": "64Mi", "user": 1000}
    sections = agent_jobs.commanding(COMMANDING, containers=containers, toolSteps=1000)
    own = {name: training_jobs.SECTIONS[name] for name in ("pods", "timeouts", "checkpoint")}
    sections |= {**own, "steps": {"total": 1}, "sandbox": {"timeLimitSeconds": 60}}
    cluster.apply(
        {**tiny_jobs.make_manifest(COMMANDING, **sections), "metadata": {"name": "command"}}
    )
    training_jobs.wait_for_phase(cluster, "command", "Succeeded")
    rows = agent_volume.run_folder("command") / "rollouts" / "step-000001.parquet"
    table = pq.read_table(rows).to_pylist()
    assert {row["score"] for row in table} == {0.0, 1.0}
    assert not any(json.loads(row["figures"])["tool_failures"] for row in table)
    left = cluster.kubectl("get", "pods", f"--selector={LABEL_ROW_OF}=command", "--output=name")
    assert left == ""
