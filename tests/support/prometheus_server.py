"""A real Prometheus for a test: scrapes every second, and is asked by HTTP."""

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

_CONFIG = {
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
    """Start a server in a folder, and end it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("prometheus: not found; apt-get install prometheus")
    (folder / "prometheus.yaml").write_text(json.dumps(_CONFIG))
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
        eventually(lambda: _is_up(server))
        yield server
    finally:
        process.terminate()
        process.wait()


def _is_up(server: PrometheusServer) -> bool:
    try:
        return server.ask("vector(1)") != []
    except OSError:
        return False
