"""`kubectl ppojob logs` against a real API server and kubelet, of pods of the base image."""

import functools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_access import Cluster, eventually, own_environment
from cluster_jobs import fake_pod, job
from kubectl_plugin import ppojob

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.containers,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("crd"),
]


def counting(word: str, lines: int, pause: float, after: str = "time.sleep(3600)") -> str:
    return (
        f"import time\nfor i in range({lines}):\n    print('{word}', i)\n"
        f"    time.sleep({pause})\n{after}\n"
    )


def words(text: str) -> list[tuple[str, str]]:
    """Lines of logs as pod and text."""
    pairs = (line.split(" | ", 1) for line in text.splitlines() if " | " in line)
    return [(pod.strip(), said) for pod, said in pairs]


def test_logs_of_all_pods_are_merged_by_time(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("merged"))
    slugs = {"controller": "c", "actor-rollout": "a", "reward": "r"}
    for slug, word in slugs.items():
        pod = fake_pod(cluster, base_image, "merged", slug, counting(word, 20, 0.2))
        cluster.apply(pod)

    def all_said() -> bool:
        logs = [cluster.kubectl("logs", f"merged-{slug}-0") for slug in slugs]
        return all("19" in log for log in logs)

    cluster.kubectl(
        "wait", "--for=condition=Ready", "pod", "-l=ppojob.dev/job=merged", "--timeout=600s"
    )
    eventually(all_said, 600.0)
    said = words(ppojob(cluster, "logs", "merged"))
    assert len(said) == 60
    assert {pod for pod, _ in said} == {f"merged-{slug}-0" for slug in slugs}
    for slug, word in slugs.items():
        assert [text for pod, text in said if pod == f"merged-{slug}-0"] == [
            f"{word} {i}" for i in range(20)
        ]
    assert [text for _, text in said] == in_order_of_time(cluster, slugs)
    assert words(ppojob(cluster, "logs", "merged", "--tail=7")) == said[-7:]
    only = words(ppojob(cluster, "logs", "merged", "--role", "actorRollout"))
    assert {pod for pod, _ in only} == {"merged-actor-rollout-0"}
    assert ppojob(cluster, "logs", "merged", "--since", "1s") == ""
    cluster.kubectl("delete", "ppojob", "merged")
    cluster.kubectl("delete", "pod", "-l=ppojob.dev/job=merged")


def in_order_of_time(cluster: Cluster, slugs: dict[str, str]) -> list[str]:
    """The same lines by what kubectl says of each pod, sorted by their stamps."""
    lines = [
        (*line.split(" ", 1), f"merged-{slug}-0")
        for slug in slugs
        for line in cluster.kubectl("logs", "--timestamps", f"merged-{slug}-0").splitlines()
    ]
    return [text for _, text, _ in sorted(lines, key=lambda line: (line[0], line[2]))]


class Following:
    """A running `logs --follow`, its lines collected as they come."""

    def __init__(self, cluster: Cluster, path: Path, *arguments: str) -> None:
        self._path = path
        environment = own_environment(KUBECONFIG=str(cluster.folder / "kubeconfig"))
        command = [sys.executable, "-u", "-m", "ppojob_cli", *arguments, "-n", cluster.namespace]
        with path.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                # What a shell starts in the background has Ctrl-C ignored, and so these tests may.
                preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def said(self) -> list[tuple[str, str]]:
        return words(self._path.read_text())


def test_followed_logs_go_on_across_pods_that_come_and_go(cluster, base_image, tmp_path) -> None:
    cluster.apply(job("followed"))
    first = fake_pod(cluster, base_image, "followed", "controller", counting("one", 40, 0.1))
    cluster.apply(first)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/followed-controller-0", "--timeout=600s")
    following = Following(cluster, tmp_path / "log", "logs", "followed", "--follow")
    try:
        eventually(lambda: len(following.said) >= 40, 600.0)
        late = fake_pod(cluster, base_image, "followed", "reward", counting("two", 5, 0.1))
        cluster.apply(late)
        eventually(lambda: ("followed-reward-0", "two 4") in following.said, 600.0)
        # The same name again, as a StatefulSet does: its log is another one.
        cluster.kubectl("delete", "pod", "followed-controller-0")
        cluster.apply(
            fake_pod(cluster, base_image, "followed", "controller", counting("three", 5, 0.1))
        )
        eventually(lambda: ("followed-controller-0", "three 4") in following.said, 600.0)
        assert following.said == [
            *(("followed-controller-0", f"one {i}") for i in range(40)),
            *(("followed-reward-0", f"two {i}") for i in range(5)),
            *(("followed-controller-0", f"three {i}") for i in range(5)),
        ]
        following.process.send_signal(signal.SIGINT)
        assert following.process.wait(60) == 130
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        following.process.kill()
        following.process.wait(60)


def test_the_log_of_a_container_that_was_started_again(cluster: Cluster, base_image: str) -> None:
    cluster.apply(job("again"))
    program = counting("life", 1, 0.0, after="time.sleep(2)\nraise SystemExit(3)")
    cluster.apply(fake_pod(cluster, base_image, "again", "controller", program))
    restarts = "{.status.containerStatuses[0].restartCount}"
    eventually(lambda: cluster.read("pod", "again-controller-0", restarts) not in {"", "0"}, 600.0)

    def told() -> bool:
        # The kubelet keeps the log of one dead container, and for a moment of none.
        said = words(ppojob(cluster, "logs", "again", "--previous"))
        return said == [("again-controller-0", "life 0")]

    eventually(told, 600.0)
    refused = ppojob(cluster, "logs", "again", "--previous", "--follow", code=2)
    assert refused.startswith("--follow: got --previous")
    cluster.kubectl("delete", "pod", "again-controller-0")
    nothing = ppojob(cluster, "logs", "again", code=2)
    assert nothing.startswith('NAME: got "again": it is Pending and has no pods now')
