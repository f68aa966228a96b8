"""A job whose model and data lie behind URLs is the job whose files lie on this machine."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = {"total": 4, "validateEvery": 2}


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def server(tiny_folder: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    served = functools.partial(Handler, directory=str(tiny_folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def of_urls(url: str) -> dict[str, object]:
    return {
        "model": {"path": f"{url}/model"},
        "data": {
            "train": [{"path": f"{url}/train.jsonl"}],
            "validation": [{"path": f"{url}/validation.jsonl"}],
            "maxPromptTokens": 64,
            "maxResponseTokens": 8,
        },
    }


def run(manifest: Path, output: Path, steps: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ppojob_cli", "run", str(manifest), "--output", str(output)]
    return subprocess.run(
        [*command, "--set", f"spec.steps.total={steps}"],
        capture_output=True,
        text=True,
        env=tiny_jobs.environment(),
    )


def test_the_same_bits_and_no_second_look(server, alone, tiny_folder, tmp_path):
    expected = run_folders.result(alone(steps=STEPS))
    url = f"http://127.0.0.1:{server.server_port}"
    manifest = tiny_jobs.write_manifest(tmp_path, tiny_folder, steps=STEPS, **of_urls(url))
    output = tmp_path / "runs" / "tiny"
    first = run(manifest, output, 2)
    assert first.returncode == 0, first.stderr
    assert f"{url}/model: fetched" in first.stderr
    assert f"path: {url}/model" in (output / "job.yaml").read_text()
    server.shutdown()
    server.server_close()
    second = run(manifest, output, 4)
    assert second.returncode == 0, second.stderr
    assert run_folders.result(output) == expected
    shutil.rmtree(tmp_path / "runs" / ".fetched")
    lost = run(manifest, output, 6)
    assert lost.returncode == 3, lost.stderr
    assert f"{url}/model: not fetched" in lost.stderr
