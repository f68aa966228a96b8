"""A run folder that tests write as a controller does, and an API server for the command line."""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_api_server import FakeApiServer, serving

from ppojob_trainer.controller.progress import STATUS_FILE, RunStatus
from ppojob_trainer.metrics.sinks import encode_line
from ppojob_trainer.rows.row_files import SCHEMA

ACCURACY = "val-core/ppojob/addition/acc/mean@1"


@dataclass
class FakeRun:
    folder: Path

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def status(self, phase: str = "Training", **fields: Any) -> None:
        status = RunStatus(phase, **{"since": 1_000.0, "total_steps": 20, **fields})
        aside = self.folder / ".aside"
        aside.write_bytes(msgspec.json.encode(status))
        os.replace(aside, self.folder / STATUS_FILE)

    def step(self, step: int, *, reward: float = 0.5, seconds: float = 10.0, **more: float) -> None:
        values = {
            "critic/score/mean": reward,
            "response_length/mean": 21.5,
            "actor/entropy": 0.8,
            "actor/grad_norm": math.nan,
            "perf/total_num_tokens": 1234.5 * seconds,
            "perf/throughput": 617.25,  # of each of two devices
            "timing_s/step": seconds,
            "timing_s/gen": seconds * 0.4,
            "timing_s/update_actor": seconds * 0.55,
            "timing_s/unaccounted": 0.01,
        }
        self.line(step, {**values, **more})

    def validation(self, value: float, step: int = 0) -> None:
        self.line(step, {ACCURACY: value, "timing_s/testing": 3.0})

    def line(self, step: int, values: dict[str, float], *, time: float | None = None) -> None:
        at = 1_000.0 + 10.0 * step if time is None else time
        with self.metrics.open("ab") as file:
            file.write(encode_line(step, at, values) + b"\n")

    def cut(self, lines: int) -> None:
        kept = self.metrics.read_bytes().splitlines(keepends=True)[:lines]
        os.truncate(self.metrics, sum(map(len, kept)))

    def rows(self, kind: str, step: int, rows: list[dict[str, object]], part: int = 0) -> None:
        folder = self.folder / kind / f"step-{step:06d}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        pq.write_table(table, folder / f"part-{part:05d}.parquet")

    def summary(self, **fields: object) -> None:
        value = {
            "phase": "Succeeded",
            "name": "addition",
            "uid": "u",
            "config_sha256": "0" * 64,
            "steps": 20,
            "tokens": 200_000,
            "seconds": 335.0,
            "validation": {"first": {ACCURACY: 0.36}, "last": {ACCURACY: 0.97}},
        }
        (self.folder / "summary.json").write_text(json.dumps({**value, **fields}))

    def log(self, pod: str, text: str) -> None:
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "logs" / f"{pod}.log").write_text(text)


@pytest.fixture
def run_called(tmp_path: Path) -> Callable[[str], FakeRun]:
    def make(name: str) -> FakeRun:
        (tmp_path / name).mkdir()
        return FakeRun(tmp_path / name)

    return make


@pytest.fixture
def run(run_called: Callable[[str], FakeRun]) -> FakeRun:
    return run_called("a run")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving() as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(tmp_path / "kubeconfig")))
        yield fake
