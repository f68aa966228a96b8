import io
import math

import pytest
from rich.console import Console

from ppojob_api import contract
from ppojob_cli.live_view import LiveView, frame
from ppojob_cli.run_state import RunState, StepRecord
from ppojob_cli.summary import Ending, finished_summary, log_lines, read_summary
from ppojob_cli.view import PlainView, View
from ppojob_trainer.controller.progress import RunStatus

PODS = {"addition-controller-0": "ready", "addition-reward-0": "starting"}
ACCURACY = "val-core/ppojob/addition/acc/mean@1"
ROW = {"row": 0, "sample": 0, "prompt": "2 + 2", "score": 1.0, "ground_truth": "4"}


def pods() -> dict[str, str]:
    return PODS


def plain(run, num_samples: int = 0) -> PlainView:
    return PlainView("addition", run.folder, num_samples=num_samples, clock=lambda: 1_025.0)


def live(run, console: Console, num_samples: int = 0) -> LiveView:
    options = {"num_samples": num_samples, "clock": lambda: 1_025.0}
    return LiveView("addition", run.folder, console, **options)


def terminal() -> Console:
    return Console(width=60, height=40, file=io.StringIO(), force_terminal=True, _environ={})


class TestPlain:
    def test_a_run(self, run, capsys: pytest.CaptureFixture[str]) -> None:
        with plain(run) as view:
            view.refresh(pods)
            view.refresh(pods)
            run.status(step=0, stage="testing")
            run.validation(0.36)
            view.refresh(pods)
            run.step(1, reward=0.1)
            run.step(2, reward=0.2)
            view.refresh(pods)
            run.status("Succeeded", step=2)
            view.refresh(pods)
        run.summary()
        view.ended(Ending(contract.EXIT_DONE))
        out, err = capsys.readouterr()
        assert out.splitlines() == [
            "starting: addition-controller-0 ready, addition-reward-0 starting",
            "training",
            "validation after step 0: ppojob/addition mean@1 0.360",
            "step 1/20  reward 0.100  length 21.5  entropy 0.800  tokens/s 1,234  10 s"
            "  left 2 min 55 s",
            "step 2/20  reward 0.200  length 21.5  entropy 0.800  tokens/s 1,234  10 s"
            "  left 2 min 55 s",
            "succeeded",
            "done: 20 steps in 5 min 35 s, 200,000 tokens",
            "  validation  ppojob/addition mean@1: 0.360 -> 0.970",
        ]
        assert err == ""

    def test_rows_of_a_long_generation(self, run, capsys) -> None:
        looks = ((1_020.0, 5), (1_035.0, 9), (1_050.0, 1_200), (1_066.0, 1_900))
        times = iter([time for time, _ in looks])
        view = PlainView("addition", run.folder, clock=lambda: next(times))
        for _, ended in looks:
            run.status(step=3, stage="gen", rows=(ended, 2_048))
            view.refresh(pods)
        assert capsys.readouterr().out.splitlines() == [
            "training",
            "gen: 9 of 2,048 responses",
            "gen: 1,900 of 2,048 responses",
        ]

    def test_a_job_that_only_generates(self, run, capsys) -> None:
        run.status(stage="testing")
        with PlainView("addition", run.folder, work="Generating") as view:
            view.refresh(pods)
        assert capsys.readouterr().out.splitlines() == ["generating"]
        assert view.what_is_finished.startswith("generating to the end")
        assert plain(run).what_is_finished.startswith("leaving the validation to the next start")
        run.status(stage="gen")
        assert plain(run).what_is_finished == "finishing the step, then writing a checkpoint"
        run.status("Starting")
        assert plain(run).what_is_finished == "stopping before a step begins"

    def test_a_resumed_run_prints_no_step_twice(self, run, capsys) -> None:
        run.validation(0.36)
        for step in (1, 2, 3):
            run.step(step, reward=step / 10)
        with plain(run) as view:
            view.refresh(pods)
            run.step(4)
            view.refresh(pods)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "the run folder has 3 steps, reward 0.100 -> 0.300"
        assert lines[1] == "validation after step 0: ppojob/addition mean@1 0.360"
        assert [line[:8] for line in lines if line.startswith("step ")] == ["step 4/?"]

    def test_a_rewind_is_told(self, run, capsys) -> None:
        view = plain(run)
        run.status()
        for step in (1, 2, 3):
            run.step(step)
        view.refresh(pods)
        run.status("Recovering", message="reward: lost: killed", restarts=1)
        run.cut(1)
        view.refresh(pods)
        for step in (2, 3, 4):
            run.line(step, {"critic/score/mean": 0.5}, time=3_000.0 + step)
            view.refresh(pods)
        lines = capsys.readouterr().out.splitlines()
        assert lines[4:] == [
            "recovering: reward: lost: killed; addition-controller-0 ready,"
            " addition-reward-0 starting",
            "back to step 1: repeating steps 2 to 3",
            "step 2/20  reward 0.500  left 3 min 00 s (again)",
            "step 3/20  reward 0.500  left 2 min 50 s (again)",
            "step 4/20  reward 0.500  left 2 min 40 s",
        ]

    def test_a_notice_is_shown_once(self, run, capsys) -> None:
        view = plain(run)
        for notices in ((), ("a: got x",), ("a: got x", "b: got\x1by"), ("b: got\x1by",)):
            run.status(notices=notices)
            view.refresh(pods)
        assert capsys.readouterr().err.splitlines() == ["a: got x", "b: got\\x1by"]

    def test_samples_follow_their_step(self, run, capsys) -> None:
        run.status()
        view = plain(run, num_samples=1)
        run.rows("rollouts", 1, [{**ROW, "response": "4\x1b[2J", "truncated": False}])
        run.step(1)
        view.refresh(pods)
        lines = capsys.readouterr().out.splitlines()
        assert lines[2:] == [
            "--- step 1, row 0: score 1",
            "  prompt    2 + 2",
            "  response  4\\x1b[2J",
            "  truth     4",
        ]

    def test_a_failure_names_the_log_and_its_last_lines(self, run, capsys) -> None:
        run.status(
            "Failed", message="reward rank 0: it raised\nTraceback (most recent call last):\n x"
        )
        lines = "".join(f"line {number}\n" for number in range(100))
        run.log("addition-reward-0", f"{lines}12:00 ERROR reward rank 0: it raised\n")
        view = plain(run)
        view.refresh(pods)
        reason = "rank 0 ended by exit status 3: it raised"
        view.ended(Ending(contract.EXIT_FAILED, reason, ("addition-reward-0", "addition-none-0")))
        out, err = capsys.readouterr()
        assert out == "failed\n"
        lines = err.splitlines()
        log = run.folder / "logs" / "addition-reward-0.log"
        assert lines[:2] == ["failed: reward rank 0: it raised", f"{log}, its last lines:"]
        assert lines[2:-2] == [f"  line {number}" for number in range(88, 100)]
        assert lines[-2].endswith("addition-none-0.log: No such file or directory")
        assert lines[-1] == "there is no checkpoint, so the same command starts from the beginning"

    def test_wrong_input_is_told_as_it_is(self, run, capsys) -> None:
        run.status("Failed", message="a.jsonl:1:2: got 1: bad; good\nb.jsonl: got 2: bad; good")
        plain(run).ended(Ending(contract.EXIT_INVALID, "rank 0 ended", ()))
        err = capsys.readouterr().err.splitlines()
        assert err == ["a.jsonl:1:2: got 1: bad; good", "b.jsonl: got 2: bad; good"]


@pytest.mark.parametrize(
    ("summary", "status", "lines"),
    [
        (
            {"steps": 0, "validation": {"first": {}, "last": {ACCURACY: 0.36}}},
            contract.EXIT_DONE,
            ["done: validated, nothing was trained", "  validation  ppojob/addition mean@1: 0.360"],
        ),
        (
            {"phase": "Interrupted", "steps": 1, "tokens": 480, "validation": {}},
            contract.EXIT_INTERRUPTED,
            ["interrupted: 1 step in 5 min 35 s, 480 tokens; the same command resumes"],
        ),
        (
            {"phase": "Interrupted", "steps": 0, "tokens": 0, "validation": {}},
            contract.EXIT_INTERRUPTED,
            ["interrupted before the first step; the same command starts there"],
        ),
        (
            None,
            contract.EXIT_INTERRUPTED,
            ["interrupted while roles were starting; the same command resumes"],
        ),
    ],
)
def test_an_end(run, capsys, summary, status: int, lines: list[str]) -> None:
    if summary is not None:
        run.summary(**summary)
    plain(run).ended(Ending(status))
    assert capsys.readouterr().out.splitlines() == lines


def test_what_lies_there_is_named(run, capsys) -> None:
    run.summary()
    (run.folder / "tensorboard").mkdir()
    (run.folder / "export").mkdir()
    (run.folder / "export" / "config.json").touch()
    (run.folder / "wandb" / "offline-run-1-a").mkdir(parents=True)
    (run.folder / "mlflow").mkdir()
    (run.folder / "mlflow" / "mlflow.db").touch()
    (run.folder / "swanlab" / "offline-a").mkdir(parents=True)
    (run.folder / "trackio").mkdir()
    (run.folder / "clearml" / "offline").mkdir(parents=True)
    (run.folder / "clearml" / "offline" / "offline-a.zip").touch()
    plain(run).already_done(read_summary(run.folder))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("done already")
    store = f"'sqlite:///{run.folder.absolute()}/mlflow/mlflow.db'"
    assert lines[-7:] == [
        f"  model       {run.folder}/export",
        f"  curves      tensorboard --logdir '{run.folder}/tensorboard'",
        f"  wandb       wandb sync '{run.folder}/wandb/offline-run-1-a'",
        f"  swanlab     swanlab sync '{run.folder}/swanlab/offline-a'",
        "  clearml     clearml-task --import-offline-session "
        f"'{run.folder}/clearml/offline/offline-a.zip'",
        f"  mlflow      mlflow ui --backend-store-uri {store}",
        f"  trackio     TRACKIO_DIR='{run.folder.absolute()}/trackio' trackio show",
    ]


def test_only_a_success_of_the_same_configuration_is_over(run) -> None:
    class Config:
        def digest(self) -> str:
            return "0" * 64

    for fields, is_over in (
        ({}, True),
        ({"phase": "Interrupted"}, False),
        ({"config_sha256": "1" * 64}, False),
    ):
        run.summary(**fields)
        assert (finished_summary(run.folder, Config()) is not None) == is_over
    for damaged in ("", "{", "[]", '{"phase": 3}', "\udcff"):
        (run.folder / "summary.json").write_bytes(damaged.encode("utf-8", "surrogateescape"))
        assert finished_summary(run.folder, Config()) is None


def test_logs(run) -> None:
    run.log("p", "\n\n")
    assert log_lines(run.folder, "p")[0].endswith("p.log: empty")
    run.log("p", "\x1b[31mred\n" + "x" * 100_000)
    lines = log_lines(run.folder, "p")
    assert all(line.isprintable() and len(line) < 400 for line in lines[1:])


def record(step: int) -> StepRecord:
    values = {
        "critic/score/mean": 1 - math.exp(-step / 5),
        "response_length/mean": 21.0 + step % 3,
        "actor/grad_norm": 1e-7,
        "perf/total_num_tokens": 1_814_803.2,
        "timing_s/step": 14.7,
        "timing_s/gen": 5.8,
        "timing_s/update_actor": 7.9,
        "timing_s/reward": 0.08,
    }
    if step % 5 == 0:
        values[ACCURACY] = step / 30
    return StepRecord(step, 1_000.0 + 15 * step, values)


def state(*status: object, steps: int = 0) -> RunState:
    return RunState(RunStatus(*status), tuple(map(record, range(steps))))


MANY_SOURCES = {f"val-core/source-{n}/acc/mean@1": 0.5 for n in range(9)}
STATES = {
    "nothing": (RunState(), {}),
    "starting": (state("Starting", 0, 0, "", 1_000.0), PODS),
    "first validation": (
        RunState(
            RunStatus("Training", 0, 20, "testing", 1_190.0),
            (StepRecord(0, 1_000.0, MANY_SOURCES),),
        ),
        {},
    ),
    "training": (state("Training", 13, 20, "update_actor", 1_190.0, steps=13), {}),
    "long": (state("Training", 3_001, 100_000, "gen", 1_190.0, steps=3_001), {}),
    "drawing": (RunState(RunStatus("Training", 3, 20, "gen", 1_190.0, rows=(1_900, 2_048))), {}),
    "recovering": (
        state("Recovering", 13, 20, "gen", 1_190.0, "reward: \x1b[2Jlost\nmore", 2, steps=13),
        PODS,
    ),
    "strange": (RunState(RunStatus("Odd", 5, 0, "[bold]x", 9e9), (record(30),)), {}),
    "over": (state("Succeeded", 20, 20, steps=21), {}),
}


def drawn(name: str, width: int, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(width=width, file=file, color_system=None)
    console.print(frame("addition-grpo", *STATES[name], 1_194.0, console))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("name", STATES)
def test_a_frame_fits(name: str) -> None:
    for width, encoding in ((40, "utf-8"), (60, "ascii"), (200, "utf-8")):
        lines = drawn(name, width, encoding).splitlines()
        assert all(len(line) <= min(width, 100) for line in lines)
        assert len({len(line) for line in lines}) == 1, "the border is straight"
        assert "\x1b" not in "".join(lines)
        assert len(lines) < 24


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", ["starting pods"]),
        ("starting", ["addition-reward-0      starting"]),
        ("recovering", ["reward: \\x1b[2Jlost", "restarts: 2"]),
        ("first validation", ["and 3 more"]),
        ("drawing", ["step 3: gen, 1,900 of 2,048 responses, 4.0 s"]),
        (
            "training",
            [
                "addition-grpo: Training",
                "step 12 of 20",
                "60 %",
                "1 min 44 s left",
                "step 13: update_actor, 4.0 s",
                "update_actor 7.9 s + gen 5.8 s",
                "ppojob/addition mean@1  0.000 -> 0.333",
                "1.0e-07",
            ],
        ),
    ],
)
def test_what_a_frame_says(name: str, words: list[str]) -> None:
    text = drawn(name, 60)
    assert [one for one in words if one not in text] == [], text


def test_a_run_on_a_terminal(run) -> None:
    console = terminal()
    view = live(run, console, num_samples=1)
    run.rows("rollouts", 1, [{**ROW, "response": "[bold]4", "truncated": False}])
    with view:
        view.refresh(pods)
        run.status(step=1, stage="gen")
        run.step(1)
        view.refresh(pods)
        view.note("a note")
        run.status("Succeeded", step=20)
    run.summary()
    view.ended(Ending(contract.EXIT_DONE))
    text = console.file.getvalue()
    for words in ("starting pods", "step 1", "[bold]4", "a note", "Succeeded", "done: 20"):
        assert words in text
    assert text.index("[bold]4") < text.index("done: 20")
    assert text.rstrip().count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is back"


def test_the_cursor_is_back_after_an_error(run) -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt), live(run, console):
        raise KeyboardInterrupt
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")


class HungUp(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("is_live", [True, False])
def test_a_reader_that_goes_away_does_not_end_the_run(run, monkeypatch, is_live: bool) -> None:
    console = terminal()
    view: View = live(run, console) if is_live else plain(run)
    with view:
        console.file = HungUp()
        monkeypatch.setattr("sys.stdout", HungUp())
        run.status()
        run.step(1)
        view.refresh(pods)
        view.note("nobody reads this")
