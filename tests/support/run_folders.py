"""What tests read from run folders and process tables."""

import contextlib
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from patience import eventually

from ppojob_trainer.metrics.names import UNREPEATABLE_PREFIXES, find

Weights = dict[str, Any]


def is_repeatable(key: str) -> bool:
    """Whether two runs with one seed must agree in a key of metrics.jsonl."""
    return key != "time" and not key.startswith(UNREPEATABLE_PREFIXES)


def metrics(output: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl that are whole."""
    path = output / "metrics.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def without_clock(output: Path) -> list[dict[str, float]]:
    """The metrics that two runs of one seed must share, key for key and bit for bit."""
    return [
        {key: value for key, value in record.items() if is_repeatable(key)}
        for record in metrics(output)
    ]


def export(output: Path, model: Path, *options: str) -> None:
    """`ppojob export`, here: a process of its own would first load PyTorch for seconds."""
    from ppojob_cli.main import main

    main(["export", str(output), "--output", str(model), *options], standalone_mode=False)


def kept(model: Path, output: Path) -> tuple[Weights, Weights, set[str]]:
    """The weights of a model, those of a run's export, and the names of those that are the same."""
    from safetensors.torch import load_file

    before, after = (load_file(one / "model.safetensors") for one in (model, output / "export"))
    assert after.keys() == before.keys()
    return before, after, {name for name in before if after[name].equal(before[name])}


def unnamed(records: list[dict[str, float]]) -> set[str]:
    """Keys of metrics that no table has."""
    keys = {key for record in records for key in record}
    return {key for key in keys - {"step", "time"} if find(key) is None}


def without_layout(output: Path) -> list[dict[str, float]]:
    """The same less what counts tokens by rank."""
    return [
        {key: value for key, value in record.items() if not key.startswith("global_seqlen/")}
        for record in without_clock(output)
    ]


def assert_trained(output: Path, steps: int, limit: float = 1e-5) -> list[dict[str, float]]:
    """The metrics of so many steps of training, in each of which engine and trainer agree."""
    trained = [record for record in metrics(output) if "actor/grad_norm" in record]
    assert len(trained) == steps
    for record in trained:
        assert record["training/rollout_probs_diff_mean"] < limit  # of new weights in each step
    return trained


def assert_close(ours: Path, theirs: Path) -> None:
    """Hold the metrics of two layouts against each other, which agree to rounding."""
    for here, there in zip(without_layout(ours), without_layout(theirs), strict=True):
        assert here == pytest.approx(there, rel=1e-4, abs=1e-5, nan_ok=True)


def rows(output: Path, step: int, purpose: str = "rollouts") -> list[dict[str, Any]]:
    """The rows of a step in their order, whoever wrote them."""
    table = pq.read_table(output / purpose / f"step-{step:06d}.parquet")
    return sorted(table.to_pylist(), key=lambda row: row["row"])


def rewinds(output: Path) -> int:
    """How often the job went back to a checkpoint, or to its beginning, with which it starts."""
    return (output / "checkpoints" / "journal.jsonl").read_text().count('"rewound"')


def result(output: Path) -> dict[str, object]:
    """All that must be equal between a disturbed run and one that was not."""
    # A step has a folder, and a file for each rank that made some of its rows.
    rows = sorted(output.glob("rollouts/*/*.parquet")) + sorted(
        output.glob("validation/*/*.parquet")
    )
    assert rows
    files = [output / "export" / "model.safetensors", *rows]
    return {
        "metrics": without_clock(output),
        **{
            str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }


def processes_of(output: Path) -> dict[int, str]:
    """Live processes of a run, by the run folder in what marks them: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            marks = _marks(entry)
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(output.absolute()) in marks and state != "Z":
            found[int(entry.name)] = command
    return found


def _marks(process: Path) -> str:
    """The environment of a process, which is another's where it was forked, and its log."""
    marks = (process / "environ").read_bytes().decode(errors="replace")
    with contextlib.suppress(FileNotFoundError):  # it has no standard output
        marks += str((process / "fd" / "1").readlink())
    return marks


def wait_until_gone(output: Path) -> None:
    eventually(lambda: not processes_of(output), 15)


def fork_server_of(output: Path) -> int:
    """Process id of the server that forks the ranks of a run and of no other."""
    (pid,) = (pid for pid, line in processes_of(output).items() if "fork-server " in line)
    return pid


def is_told_to_end(pid: int) -> bool:
    """Whether a SIGTERM waits for a process that does not listen yet."""
    status = (Path("/proc") / str(pid) / "status").read_text()
    (pending,) = (line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def kill_all(output: Path) -> None:
    """Kill all processes of a run; one may end by itself meanwhile."""
    for pid in processes_of(output):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rank_pids(output: Path, role: str) -> dict[str, int]:
    """Process ids of a role's pod by what they are: supervisor, rank, controller, child."""
    found = {}
    for pid, command in processes_of(output).items():
        try:
            marks = _marks(Path("/proc") / str(pid))
        except OSError:
            continue  # it has ended meanwhile
        # Reward children see no variable of ours but the scratch folder of their pod.
        if not any(f"{place}/tiny-{role}-0" in marks for place in (".pods/scratch", "logs")):
            continue
        kind = next(
            (k for k in ("supervise", "controller", "rank") if f" {k} " in command), "child"
        )
        found[kind] = pid
    return found
