import gzip
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import job_points
import pytest
import run_folders
from tiers import first_in_test


def test_a_job_is_real_processes_and_leaves_none(start, tiny_job, output: Path):
    run = start(tiny_job(steps={"total": 400}), output, PPOJOB_FORK_SERVER="")
    run.wait_for_step(2)
    slugs = ("controller", "actor-rollout", "reward")
    roles = {slug: run_folders.rank_pids(output, slug) for slug in slugs}
    assert {"supervise", "controller"} <= set(roles["controller"])
    assert {"supervise", "rank"} <= set(roles["actor-rollout"])
    assert {"supervise", "rank", "child"} <= set(roles["reward"])
    pids = [pid for pids in roles.values() for pid in pids.values()]
    pids += [run.process.pid, run_folders.fork_server_of(output)]
    assert len(pids) == len(set(pids)) >= 9
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.lines
    run_folders.wait_until_gone(output)


def test_a_job_under_nohup_outlives_its_terminal_and_needs_no_proxy(start, tiny_job, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it
    try:
        run = start(tiny_job(), tmp_path / "run", http_proxy="http://127.0.0.1:9")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGHUP)
    assert run.wait() == 0, run.lines


def test_a_finished_job_has_everything_and_is_not_run_again(start, tiny_job, output, undisturbed):
    job = tiny_job(numExamine=1)
    first = start(job, output).succeed()
    run_folders.wait_until_gone(output)
    assert run_folders.result(output) == undisturbed, "two runs of one seed are equal"
    assert not (output / "logs" / "fork-server.log").exists(), "it used those of the session"
    assert [record["step"] for record in run_folders.metrics(output)] == list(range(13))
    for name in ("job.yaml", "export/config.json", "export/tokenizer.json", "checkpoints/latest"):
        assert (output / name).exists(), name
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["phase"], summary["steps"]) == ("Succeeded", 12)
    assert set(summary["validation"]["first"]) == {"val-core/tiny/acc/mean@1"}
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for sample in ("--- step 12, row 0: score ", "--- validation 12, row 0: score "):
        assert log.count(sample) == 1
        assert sum(line.startswith(sample) for line in first.lines) == 1
    written = (output / "metrics.jsonl").read_bytes()
    again = start(job, output)
    assert again.wait() == 0
    assert any("done already" in line for line in again.lines)
    assert (output / "metrics.jsonl").read_bytes() == written


def test_a_run_of_another_seed_is_another_run(start, tiny_job, output: Path, undisturbed):
    start(tiny_job(seed=1, steps={"total": 1}), output).succeed()
    first, other = (of[1] for of in (undisturbed["metrics"], run_folders.without_clock(output)))
    assert first["critic/score/mean"] != other["critic/score/mean"], "other rows were drawn"


def test_ctrl_c_checkpoints_and_the_same_command_goes_on(start, tiny_job, tmp_path, undisturbed):
    job, parts = tiny_job(), tmp_path / "parts"
    run = start(job, parts)
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    run_folders.wait_until_gone(parts)
    assert_saved(parts)
    start(job, parts).succeed()
    assert run_folders.result(parts) == undisturbed


def assert_saved(output: Path) -> None:
    summary = json.loads((output / "summary.json").read_text())
    assert summary["phase"] == "Interrupted"
    saved = output / "checkpoints" / f"step-{summary['steps']:06d}"
    assert (saved / "manifest.json").exists()


def test_a_validation_does_not_delay_an_end_and_is_done_by_the_next_start(
    start, tiny_job, output: Path, alone, once
):
    sections: dict[str, Any] = {
        "steps": {"total": 2, "validateFirst": False, "validateEvery": 1},
        "rollout": {
            "engine": "huggingface",
            "dtype": "float32",
            "maxSequences": 4,
            "validation": {"temperature": 1.0, "samples": 25},
        },
        "checkpoint": {"every": None},
    }
    undisturbed, job = run_folders.result(alone(**sections)), tiny_job(**sections)

    def is_validating() -> bool:
        status = output / "status.json"
        return status.exists() and json.loads(status.read_text())["stage"] == "testing"

    run = start(job, output)
    run.wait_until(is_validating, "the validation of step 1")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.logs()
    assert_saved(output)
    assert run_folders.metrics(output) == []
    run = start(job, output, **job_points.armed(once, "controller.step.begin@1=stop"))
    run.interrupt_where_it_stopped()
    assert run.wait() == 130, run.logs()
    assert_saved(output)
    assert [record["step"] for record in run_folders.metrics(output)] == [1]
    start(job, output).succeed()
    assert run_folders.result(output) == undisturbed


def test_sigterm_to_all_processes_at_once_checkpoints(start, tiny_job, output: Path):
    run = start(tiny_job(steps={"total": 100_000}, checkpoint={"every": None}), output)
    run.wait_for_step(2)
    for pid in (*run_folders.processes_of(output), run.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert run.wait() == 130, run.logs()
    assert_saved(output)
    run_folders.wait_until_gone(output)


def test_ctrl_c_while_starting_ends_at_once_and_leaves_no_older_summary(start, tiny_job, output):
    output.mkdir()
    (output / ".lock").touch()
    (output / "summary.json").write_text('{"phase": "Succeeded", "config_sha256": "of a shorter"}')
    run = start(tiny_job(), output)
    while not (output / "status.json").exists():
        time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(30) == 130, run.logs()
    assert run.lines[-1].startswith("interrupted while roles were starting; ")
    assert not (output / "summary.json").exists()
    run_folders.wait_until_gone(output)


GATE = """
import os, pathlib, sys, time

def wait():
    place = pathlib.Path({place!r})
    (place / f"{{os.getpid()}}.waits").touch()
    while not (place / "open").exists():
        time.sleep(0.01)

def is_command(name):
    return name in sys.orig_argv

{gate}
"""
GATES = {
    "pods": "is_command('supervisor-server') and os._exit(1)\nis_command('supervise') and wait()",
    "forked pods": "if is_command('supervisor-server'): os.register_at_fork(after_in_child=wait)",
    "controllers": "if is_command('fork-server'): wait()",
}


@pytest.mark.parametrize("whose", first_in_test(list(GATES), "pods"))
def test_ctrl_c_before_anybody_listens(whose, start, tiny_job, tmp_path: Path, output):
    """Python stands at the gate before the first line of ours: a pod's, or the controller's."""
    place = tmp_path / "gate"
    place.mkdir()
    (place / "sitecustomize.py").write_text(GATE.format(place=str(place), gate=GATES[whose]))
    path = f"{place}:{os.environ.get('PYTHONPATH', '')}"
    run = start(tiny_job(steps={"total": 100_000}), output, PYTHONPATH=path)

    def is_one_told() -> bool:
        waiting = [int(path.stem) for path in place.glob("*.waits")]
        try:
            return any(map(run_folders.is_told_to_end, waiting))
        except FileNotFoundError:
            return True  # it was killed, which shows at the end

    if whose != "controllers":
        run.wait_until(lambda: len(list(place.glob("*.waits"))) == 3, "the pods started")
        run.process.send_signal(signal.SIGINT)
        run.wait_until(is_one_told, "the pod told to end")
    else:
        ordered = "controller: attempt 1: started ['by the fork server']"
        run.wait_until(lambda: ordered in run.logs(), "the controller ordered")
        run.process.send_signal(signal.SIGINT)
        asked = "stop requested; the controller finishes its step"
        run.wait_until(lambda: asked in run.logs(), "the controller told to end")
    (place / "open").touch()
    assert run.wait() == 130, run.logs()
    alone = "fork server: it ended, or took too long; the supervisor is started as a new process"
    assert (alone in run.logs()) == (whose == "pods")
    run_folders.wait_until_gone(output)


def test_a_controller_killed_as_it_ends_the_job_comes_back_and_checkpoints(
    start, tiny_job, output, once
):
    job = tiny_job(steps={"total": 100_000}, checkpoint={"every": None})
    run = start(job, output, **job_points.armed(once, "checkpoint.seal.rename.before@1=kill"))
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.logs()
    assert job_points.fired(once) == {"checkpoint.seal.rename.before"}
    done = int(run_folders.metrics(output)[-1]["step"])
    assert (output / "checkpoints" / f"step-{done:06d}" / "manifest.json").exists()


def test_a_second_ctrl_c_stops_at_once(start, tiny_job, output: Path):
    run = start(tiny_job(steps={"total": 100_000}), output)
    run.wait_for_step(3)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(30) == 130, run.logs()
    run_folders.wait_until_gone(output)


def test_a_killed_runner_takes_all_processes_with_it(start, tiny_job, output: Path):
    run = start(tiny_job(steps={"total": 100_000}), output, PPOJOB_FORK_SERVER="")
    run.wait_for_step(1)
    assert len(run_folders.processes_of(output)) >= 8
    assert run_folders.fork_server_of(output)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run_folders.wait_until_gone(output)


def test_a_run_folder_in_use_is_refused(start, tiny_job, output: Path):
    job = tiny_job(steps={"total": 100_000})
    run = start(job, output)
    run.wait_for_step(1)
    other = start(job, output)
    assert other.wait() == 2
    assert other.lines == [
        f"--output: got {output}: process {run.process.pid} runs a job there; "
        "wait for it, end it, or give another folder"
    ]


@pytest.mark.long
def test_traces_of_a_step_change_nothing(start, tiny_job, output, undisturbed):
    profile = {"steps": [2, 99], "contents": ["shapes", "stack", "memory"]}
    run = start(tiny_job(profile=profile), output).succeed()
    assert run_folders.result(output) == undisturbed
    assert f"traces      {output / 'profile'}" in "\n".join(run.lines)
    assert [folder.name for folder in (output / "profile").iterdir()] == ["step-000002"]
    traces = {path.name for path in (output / "profile" / "step-000002").iterdir()}
    assert {f"actorRollout-00000-update-policy-{n}.json.gz" for n in (0, 1)} <= traces
    update = output / "profile" / "step-000002" / "actorRollout-00000-update-policy-0.json.gz"
    with gzip.open(update) as file:
        events = json.load(file)["traceEvents"]
    named = {event["name"]: event for event in events}
    assert named["aten::mm"]["args"]["Input Dims"][0]
    assert "[memory]" in named
    assert {"python_function"} <= {event.get("cat") for event in events}
