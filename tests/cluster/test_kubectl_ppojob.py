"""`kubectl ppojob` but for its logs, against a real API server, scheduler and kubelet.

Where no trainer is needed, pods of the base image stand in for those of a job: the test makes the
PPOJob, writes the status that an operator would, and makes pods with the labels of the job.
"""

from collections.abc import Callable, Iterator

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import claim, fake_pod, job
from kubectl_plugin import ppojob, start
from operator_replica import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("crd")]

EXPOSITION = """# HELP ppojob_reward mean score
# TYPE ppojob_reward gauge
ppojob_reward{ppojob="served"} 0.25
# HELP ppojob_steps_total steps done
# TYPE ppojob_steps_total counter
ppojob_steps_total{ppojob="served"} 3.0
"""

SERVING = f"""
import http.server
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {EXPOSITION!r}.encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 7404), Metrics).serve_forever()
"""


@pytest.mark.containers
def test_metrics_come_through_the_api_server(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("served"))
    none = ppojob(cluster, "metrics", "served", code=2)
    assert none.startswith(
        "metrics: got no answer from pod served-controller-0: the job is Pending"
    )
    cluster.apply(fake_pod(cluster, base_image, "served", "controller", SERVING))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/served-controller-0", "--timeout=600s")

    def serves() -> bool:
        with start(cluster, "metrics", "served", "--raw") as process:
            return process.communicate(timeout=600)[0] == EXPOSITION

    eventually(serves, 600.0)
    assert ppojob(cluster, "metrics", "served").splitlines() == [
        "ppojob_reward       0.250  mean score",
        "ppojob_steps_total  3.000  steps done",
    ]


@pytest.fixture(scope="class")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("operator")
    # `explain` takes an operator for gone by its Lease, so this one's is as long as any other's.
    one = Operator(cluster, folder, "explained", LEASE_SECONDS="8")
    yield one
    one.end()


@pytest.mark.usefixtures("operator")
class TestWithAnOperator:
    def explained(self, cluster: Cluster, name: str, holds: Callable[[str], bool]) -> str:
        """The first explanation of which something holds."""
        said: list[str] = []

        def asked() -> bool:
            given = ("explain", name, "--operator-namespace", cluster.namespace)
            said.append(ppojob(cluster, *given))
            return holds(said[-1])

        eventually(asked, 600.0)
        return said[-1]

    def test_a_claim_that_is_missing(self, cluster: Cluster) -> None:
        cluster.apply(job("claimless", claim="nowhere"))
        said = self.explained(cluster, "claimless", lambda text: "Unschedulable" in text)
        assert 'persistentvolumeclaim "nowhere" not found' in " ".join(said.split())
        assert "   -> the scheduler's words: free or add nodes" in said
        cluster.kubectl("delete", "ppojob", "claimless")

    @pytest.mark.containers
    def test_gpus_that_nobody_has_and_an_image_that_is_missing(self, cluster: Cluster) -> None:
        cluster.apply(*claim(cluster, "there"))
        pods = [{"image": "localhost/ppojob/no-such-image:1", "gpuResource": "example.com/gpu"}]
        roles = {"actorRollout": {"gpusPerReplica": 2}}
        cluster.apply(job("hungry", claim="there", roles=roles, pods=pods))

        def both(text: str) -> bool:
            return "Insufficient example.com/gpu" in text and "ImageUnavailable" in text

        said = self.explained(cluster, "hungry", both)
        # What a person can mend at once comes before what needs another node.
        assert said.index("1. ImageUnavailable: ") < said.index("2. Unschedulable: ")
        assert "no-such-image" in said
        cluster.kubectl("delete", "ppojob", "hungry")
        cluster.kubectl("delete", "pv", f"{cluster.namespace}-there", "--wait=false")

    def test_suspended_and_resumed(self, cluster: Cluster) -> None:
        cluster.apply(job("paused"))
        pods = ("get", "pods", "--selector=ppojob.dev/job=paused", "--output=name")
        eventually(lambda: bool(cluster.kubectl(*pods)), 600.0)
        said = ppojob(cluster, "suspend", "paused", "--wait")
        assert said.startswith("paused: will be suspended\n")
        assert said.endswith("paused: Suspended: JobSuspended: spec.lifecycle.suspend is true\n")
        assert not cluster.kubectl(*pods)
        assert ppojob(cluster, "suspend", "paused") == "paused: suspended already\n"
        said = self.explained(cluster, "paused", lambda text: "JobSuspended" in text)
        assert "set `spec.lifecycle.suspend` to false" in said
        assert ppojob(cluster, "resume", "paused") == "paused: will be resumed\n"
        eventually(lambda: bool(cluster.kubectl(*pods)), 600.0)
        assert ppojob(cluster, "resume", "paused") == "paused: not suspended already\n"
        cluster.kubectl("delete", "ppojob", "paused")
