"""What trackers hold of a run, read back from their own local forms.

As a program it prints that as JSON: `python tracker_runs.py wandb FOLDER`. Tests start it, since
the libraries are not for their process.
"""

import json
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import run_folders

BLOCK_BYTES = 32 * 1024
HEADER = struct.Struct("<IHB")
FULL, LAST = 1, 4

Points = list[tuple[int, str, float]]


def points(tracker: str, output: Path) -> Points:
    """Every (step, metric, value) of a tracker, sorted; what it has twice is there twice."""
    program = [sys.executable, __file__, tracker, str(output)]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    return sorted((step, name, value) for step, name, value in json.loads(printed))


def expected(output: Path, tracker: str) -> Points:
    found = []
    for record in run_folders.metrics(output):
        step = int(record.pop("step"))
        del record["time"]
        found += [
            (step, name.replace("@", "_at_") if tracker == "mlflow" else name, value)
            for name, value in record.items()
            if value is not None
        ]
    return sorted(found)


def of_wandb(output: Path) -> Points:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = output.glob("wandb/offline-run-*/run-*.wandb")
    found = []
    for body in records(path.read_bytes()):
        record = Record.FromString(body)
        if record.WhichOneof("record_type") != "history":
            continue
        items = {(item.key or item.nested_key[0]): item.value_json for item in record.history.item}
        values = {name: json.loads(text) for name, text in items.items()}
        step = record.history.step.num
        assert values.pop("_step", step) == step
        found += [(step, name, value) for name, value in values.items() if name[0] != "_"]
    return found


def records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb or .swanlab file: LevelDB's log, behind seven bytes of their own."""
    place, body = 7, b""
    while place + HEADER.size <= len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        body += data[place : place + length]
        place += length
        if kind in {FULL, LAST}:
            yield body
            body = b""


def of_mlflow(output: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{output.absolute()}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("ppojob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return [
        (point.step, name, point.value)
        for name in run.data.metrics
        if name != "step"
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def of_swanlab(output: Path) -> Points:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    (path,) = output.glob("swanlab/offline-*/run-*.swanlab")
    read = [Record.FromString(body) for body in records(path.read_bytes())]
    points = [record.scalar for record in read if record.WhichOneof("record_type") == "scalar"]
    return [(point.step, point.key, point.value.number) for point in points]


def of_trackio(output: Path) -> Points:
    with sqlite3.connect(output / "trackio" / "ppojob.db") as store:
        rows = store.execute("select step, metrics from metrics").fetchall()
        assert len(store.execute("select * from configs").fetchall()) == 1
    return [(step, name, value) for step, text in rows for name, value in json.loads(text).items()]


def of_clearml(output: Path) -> Points:
    (path,) = output.glob("clearml/offline/offline-*/metrics.jsonl")
    reports = [one for line in path.read_text().splitlines() for one in json.loads(line)]
    names = [f"{one['metric']}/{one['variant']}" for one in reports]
    return [(one["iter"], name, one["value"]) for one, name in zip(reports, names, strict=True)]


if __name__ == "__main__":
    tracker, folder = sys.argv[1:]
    read = globals()[f"of_{tracker}"]
    sys.stdout.write(json.dumps(read(Path(folder))))
