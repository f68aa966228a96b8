"""The operator as a process beside a test cluster."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from cluster_access import Cluster, own_environment


class Operator:
    """A replica that runs on this machine, for the namespace of the test alone.

    It comes with the kubeconfig, or with that of the cluster, which may do everything. Settings go
    by their names in the environment, without the prefix.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: Path,
        name: str,
        *,
        kubeconfig: Path | None = None,
        **settings: str,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]  # of the probes, for which nobody asks here
        given = {
            "KUBECONFIG": str(kubeconfig or cluster.folder / "kubeconfig"),
            "PPOJOB_OPERATOR_NAMESPACE": cluster.namespace,
            "PPOJOB_OPERATOR_WATCH_NAMESPACES": cluster.namespace,
            "PPOJOB_OPERATOR_IDENTITY": name,
            "PPOJOB_OPERATOR_LEASE_SECONDS": "4",
            "PPOJOB_OPERATOR_METRICS_PORT": "0",
            "PPOJOB_OPERATOR_LIVENESS_PORT": str(port),
            **{f"PPOJOB_OPERATOR_{name}": text for name, text in settings.items()},
        }
        with (logs / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ppojob_operator"],
                env=own_environment(**given),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)
