import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_jobs
import pytest
import tiny_jobs
from chart import CHART, DASHBOARDS, queries, series_names
from patience import eventually

from ppojob_api import contract

pytestmark = pytest.mark.cluster

# KL is in the reward here, not in the loss; nor is there a critic.
NOT_IN_THIS_RUN = {
    "ppojob_actor_kl_loss",
    "ppojob_actor_kl_coef",
    "ppojob_critic_grad_norm",
    "ppojob_critic_values_mean",
    "ppojob_critic_vf_clipfrac_ratio",
    "ppojob_critic_vf_explained_var",
    "ppojob_critic_vf_loss",
}


CONFIG = {
    "global": {"scrape_interval": "1s"},
    "scrape_configs": [
        {
            "job_name": "pods",
            "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
        }
    ],
}


@dataclass(frozen=True)
class PrometheusServer:
    """A running server: the port of its API, and the folder with its configuration."""

    port: int
    folder: Path

    def scrape(self, targets: list[str], **labels: str) -> None:
        """Watch these, `host:port` each, under these labels."""
        aside = self.folder / "targets.part"
        aside.write_text(json.dumps([{"targets": targets, "labels": labels}]))
        aside.rename(self.folder / "targets.json")

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples that a query gives now."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query?"
        asked = address + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


@contextmanager
def prometheus_server(folder: Path) -> Iterator[PrometheusServer]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("prometheus: not found; apt-get install prometheus")
    (folder / "prometheus.yaml").write_text(json.dumps(CONFIG))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        [
            program,
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = PrometheusServer(port, folder)
        eventually(lambda: is_up(server))
        yield server
    finally:
        process.terminate()
        process.wait()


def is_up(server: PrometheusServer) -> bool:
    try:
        return server.ask("vector(1)") != []
    except OSError:
        return False


def asked() -> set[str]:
    alerts = re.sub(r"^ *#.*$", "", (CHART / "templates" / "alerts.yaml").read_text(), flags=re.M)
    texts = [query.text for path in DASHBOARDS for query in queries(path)] + [alerts]
    names = {name for text in texts for name in series_names(text)}
    return {name for name in names if not name.startswith("ppojob_operator_")}


def targets(output: Path) -> list[str]:
    addresses = json.loads((output / ".pods" / "addresses.json").read_text())
    ports = (contract.PORT_HEALTH, contract.PORT_METRICS)
    return [f"{address}:{port}" for address in set(addresses.values()) for port in ports]


def test_every_series_that_the_chart_asks_for_is_in_a_real_run(start, tmp_path, output):
    """Of a job whose rows are conversations, which vLLM draws."""
    (tmp_path / "talking").mkdir()
    talking = agent_jobs.make_talking_folder(tmp_path / "talking")
    tools = agent_jobs.write_tools(talking, seconds=0.0)
    sections = agent_jobs.talking(talking, {"path": str(tools), "function": "add"})
    algorithm = {
        "type": "grpo",
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "kl": {"in": "reward", "coefficient": 0.01},
    }
    sections |= {"algorithm": algorithm, "steps": {"total": 100_000, "validateEvery": 1}}
    engine = {"engine": "vllm", "kvCacheGib": 0.1, "dtype": "float32"}
    sections["rollout"] = {**sections["rollout"], **engine}
    job = tiny_jobs.write_manifest(tmp_path, talking, **sections)
    with prometheus_server(tmp_path) as prometheus:
        run = start(job, output)
        run.wait_for_step(1)
        prometheus.scrape(targets(output), namespace="here")

        def unseen() -> set[str]:
            return {one for one in asked() if not prometheus.ask(f"count({one})")}

        def step() -> int:
            (found,) = prometheus.ask('ppojob_training_global_step{ppojob="tiny"}')
            return int(found["value"][1])

        deadline = time.monotonic() + 120
        while unseen() != NOT_IN_THIS_RUN or step() <= 2:
            assert time.monotonic() < deadline, unseen() ^ NOT_IN_THIS_RUN
            time.sleep(1)
