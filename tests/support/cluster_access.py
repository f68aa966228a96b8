"""The test cluster as a test sees it: kubectl, objects, and waiting for what must come."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import patience
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
eventually = functools.partial(patience.eventually, pause=0.2)
"""Each look costs a process of kubectl's."""


@dataclass(frozen=True)
class Cluster:
    """A running node: its folder `.cluster`, and where objects go that name no namespace."""

    folder: Path
    namespace: str

    @property
    def is_ours(self) -> bool:
        """Whether its processes and logs are on this machine; not so on kind."""
        return (self.folder / "node").exists()

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Call kubectl; what it refuses fails the test with its own words."""
        done = self._call(arguments, stdin)
        if done.returncode:
            pytest.fail(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def refused(self, *arguments: str, stdin: str = "") -> str:
        """Call kubectl for something that must be refused; answers why it was."""
        done = self._call(arguments, stdin)
        assert done.returncode, f"kubectl {' '.join(arguments)} was not refused: {done.stdout}"
        return done.stderr

    def outcome(self, *arguments: str, stdin: str = "") -> str:
        """Call kubectl; answers what it says, whether it did as asked or not."""
        done = self._call(arguments, stdin)
        return done.stdout + done.stderr

    def apply(self, *objects: Mapping[str, object]) -> None:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "--filename=-", stdin=listed)

    def get(self, *what: str) -> Any:
        """An object, or a list of objects, as it is."""
        return json.loads(self.kubectl("get", *what, "--output=json"))

    def read(self, kind: str, name: str, path: str) -> str:
        """One field of an object by its JSON path; empty where there is none."""
        return self.kubectl("get", kind, name, f"--output=jsonpath={path}")

    def establish(self, crd: str) -> None:
        """Wait until a definition is served; `kubectl wait` fails while its conditions are null."""
        asked = ("wait", "--for=condition=Established", f"crd/{crd}")
        eventually(lambda: "condition met" in self.outcome(*asked))

    def execute(self, pod: str, *argv: str) -> str:
        return self.kubectl("exec", pod, "--", *argv)

    def _call(self, arguments: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--kubeconfig={self.folder}/kubeconfig", f"--cache-dir={self.folder}/kubectl"]
        # On kind there is no kubectl of ours.
        program = shutil.which("kubectl", path=f"{self.folder}/bin:{os.environ['PATH']}")
        assert program is not None, "no kubectl on PATH"
        return subprocess.run(
            [program, *flags, f"--namespace={self.namespace}", *arguments],
            input=stdin,
            env=own_environment(),
            capture_output=True,
            text=True,
            check=False,
        )


def own_environment(**more: str) -> dict[str, str]:
    """The environment of a program that asks the node: it is here, nobody's proxy is between."""
    environment = {**os.environ, **more}
    return {name: text for name, text in environment.items() if "proxy" not in name.lower()}
