"""An operator from the working tree as a process of its own, and what it says of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_READING = frozenset({"list", "watch"})


class OperatorProcess:
    """One replica, which serves one namespace and keeps its Lease there.

    Args:
        port: of its metrics; the next one is that of its probes.
        log: takes what it says.
    """

    def __init__(self, kubeconfig: Path, namespace: str, name: str, port: int, log: Path) -> None:
        given = {
            "NAMESPACE": namespace,
            "WATCH_NAMESPACES": namespace,
            "IDENTITY": name,
            "METRICS_PORT": port,
            "LIVENESS_PORT": port + 1,
            # The addresses of fake pods answer nobody, so nobody is asked.
            "POLL_SECONDS": 36_000,
        }
        environment: Mapping[str, str] = {
            **{key: text for key, text in os.environ.items() if "proxy" not in key.lower()},
            "KUBECONFIG": str(kubeconfig),
            **{f"PPOJOB_OPERATOR_{key}": str(value) for key, value in given.items()},
        }
        self._port = port
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ppojob_operator"],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    @property
    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> tuple[float, float]:
        """Resident memory, now and at most, in 10^6 bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        found = {line.split(":")[0]: line.split() for line in lines}
        return tuple(int(found[name][1]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]

    async def samples(self) -> dict[str, float]:
        """Every series as `name|value|...`, labels by their names; none without an answer."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self._port}/metrics") as answer,
            ):
                text = await answer.text()
        except aiohttp.ClientError:
            return {}
        return {
            "|".join(
                (sample.name, *(value for _, value in sorted(sample.labels.items())))
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def requests(samples: Mapping[str, float], *, writes_only: bool = False) -> dict[str, float]:
    """Requests to the API server by verb and kind, streams and the Lease aside."""
    found: dict[str, float] = {}
    for series, value in samples.items():
        name, _, labels = series.partition("|")
        if name != "ppojob_operator_api_requests_total":
            continue
        code, kind, verb = labels.split("|")
        if verb in _READING or kind == "Lease" or (writes_only and verb == "get"):
            continue
        key = f"{verb} {kind} {code}"
        found[key] = found.get(key, 0.0) + value
    return found
