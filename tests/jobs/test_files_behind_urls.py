import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

STEPS = {"total": 4, "validateEvery": 2}


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def server(tiny_folder: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    served = functools.partial(Handler, directory=str(tiny_folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
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


def test_the_same_bits_no_second_look_and_a_lost_folder(server, alone, tiny_folder, tmp_path):
    expected = run_folders.result(alone(steps=STEPS))
    url = f"http://127.0.0.1:{server.server_port}"
    bucket = tmp_path / "bucket" / "tiny"
    checkpoint = {"every": 1, "copyTo": str(bucket.parent)}
    manifest = tiny_jobs.write_manifest(
        tmp_path, tiny_folder, steps=STEPS, checkpoint=checkpoint, **of_urls(url)
    )
    output = tmp_path / "runs" / "tiny"
    command = ("run", manifest, "--output", output)
    first = tiny_jobs.ppojob(tmp_path, *command, "--set", "spec.steps.total=2")
    assert f"{url}/model: fetched" in first
    assert f"path: {url}/model" in (output / "job.yaml").read_text()
    server.shutdown()
    server.server_close()
    shutil.rmtree(output)
    second = tiny_jobs.ppojob(tmp_path, *command)
    assert "resumes from the copy of step 2" in second
    found = run_folders.result(output)
    # Rows of before are not copied; nothing goes on from them.
    assert found == {key: value for key, value in expected.items() if key in found}
    assert "metrics" in found
    assert [name for name in found if "step-000004" in name]
    copied = (bucket / "export" / "model.safetensors").read_bytes()
    assert copied == (output / "export" / "model.safetensors").read_bytes()
    steps = sorted(path.name for path in (bucket / "checkpoints").iterdir())
    assert steps == ["step-000003", "step-000004"]
