"""What is shown: plain lines and the live table, from folders in all states."""

import io
import math
from collections.abc import Sequence

import pytest
from rich.console import Console

from ppojob_api import contract
from ppojob_cli.live_view import LiveView, frame
from ppojob_cli.panel import Canvas
from ppojob_cli.plain_view import PlainView
from ppojob_cli.run_state import PodState, RunState, StepRecord
from ppojob_cli.summary import Ending, RunSummary, finished_summary, log_lines, read_summary
from ppojob_trainer.controller.progress import TrainingStatus

PODS = (PodState("addition-controller-0", "ready"), PodState("addition-reward-0", "starting"))
NO_PODS: tuple[PodState, ...] = ()


def pods() -> Sequence[PodState]:
    return PODS


def plain(run, num_samples: int = 0) -> PlainView:
    return PlainView("addition", run.folder, num_samples=num_samples, clock=lambda: 1_025.0)


def live(run, console: Console, num_samples: int = 0) -> LiveView:
    options = {"num_samples": num_samples, "clock": lambda: 1_025.0}
    return LiveView("addition", run.folder, console, **options)


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

    def test_a_job_that_only_validates_says_what_it_found(self, run, capsys) -> None:
        scores = {"val-core/ppojob/addition/acc/mean@1": 0.36}
        run.summary(steps=0, seconds=0.0, validation={"first": scores, "last": scores})
        plain(run).ended(Ending(contract.EXIT_DONE))
        assert capsys.readouterr().out.splitlines() == [
            "done: validated, nothing was trained",
            "  validation  ppojob/addition mean@1: 0.360",
        ]

    def test_a_resumed_run_prints_no_step_twice(self, run, capsys) -> None:
        run.validation(0.36)
        for step in (1, 2, 3):
            run.step(step, reward=step / 10)
        view = plain(run)
        with view:
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
        run.rows("rollouts", 2, [])
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
        text = {"row": 0, "sample": 0, "prompt": "2 + 2", "response": "4\x1b[2J", "score": 1.0}
        run.rows("rollouts", 1, [{**text, "ground_truth": "4", "truncated": False}])
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
        run.log("addition-reward-0", "".join(f"line {number}\n" for number in range(100)))
        view = plain(run)
        view.refresh(pods)
        reason = "rank 0 ended by exit status 3: it raised"
        view.ended(Ending(contract.EXIT_FAILED, reason, ("addition-reward-0", "addition-none-0")))
        out, err = capsys.readouterr()
        assert out == "failed\n"
        lines = err.splitlines()
        log = run.folder / "logs" / "addition-reward-0.log"
        assert lines[:2] == ["failed: reward rank 0: it raised", f"{log}, its last lines:"]
        assert lines[2:-1] == [f"  line {number}" for number in range(88, 100)]
        assert lines[-1].endswith("addition-none-0.log: No such file or directory")

    def test_wrong_input_is_told_as_it_is(self, run, capsys) -> None:
        run.status("Failed", message="a.jsonl:1:2: got 1: bad; good\nb.jsonl: got 2: bad; good")
        plain(run).ended(Ending(contract.EXIT_INVALID, "rank 0 ended", ()))
        err = capsys.readouterr().err.splitlines()
        assert err == ["a.jsonl:1:2: got 1: bad; good", "b.jsonl: got 2: bad; good"]

    def test_a_closed_pipe_does_not_end_the_run(self, run, monkeypatch) -> None:
        class Closed(io.StringIO):
            def write(self, _text: str) -> int:
                raise BrokenPipeError

        run.status()
        run.step(1)
        view = plain(run)
        monkeypatch.setattr("sys.stdout", Closed())
        with view:
            run.step(2)
            view.refresh(pods)


class TestSummary:
    def test_interrupted(self, run, capsys) -> None:
        run.summary(phase="Interrupted", steps=1)
        plain(run).ended(Ending(contract.EXIT_INTERRUPTED))
        first = capsys.readouterr().out.splitlines()[0]
        assert first == (
            "interrupted: 1 step in 5 min 35 s, 200,000 tokens; the same command goes on from there"
        )

    def test_interrupted_while_it_starts(self, run, capsys) -> None:
        plain(run).ended(Ending(contract.EXIT_INTERRUPTED))
        assert capsys.readouterr().out.startswith("interrupted while roles were starting; ")

    def test_what_lies_there_is_named(self, run, capsys) -> None:
        run.summary()
        (run.folder / "tensorboard").mkdir()
        (run.folder / "export").mkdir()
        (run.folder / "export" / "config.json").touch()
        (run.folder / "wandb" / "offline-run-1-a").mkdir(parents=True)
        (run.folder / "mlflow").mkdir()
        (run.folder / "mlflow" / "mlflow.db").touch()
        summary = read_summary(run.folder)
        assert summary is not None
        plain(run).already_done(summary)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("done already")
        store = f"'sqlite:///{run.folder.absolute()}/mlflow/mlflow.db'"
        assert lines[-4:] == [
            f"  model       {run.folder}/export",
            f"  curves      tensorboard --logdir '{run.folder}/tensorboard'",
            f"  wandb       wandb sync '{run.folder}/wandb/offline-run-1-a'",
            f"  mlflow      mlflow ui --backend-store-uri {store}",
        ]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": 3}', "\udcff"])
    def test_one_that_cannot_be_read_is_none(self, run, text: str) -> None:
        (run.folder / "summary.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert read_summary(run.folder) is None

    def test_only_a_success_of_the_same_configuration_is_over(self, run) -> None:
        class Config:
            def digest(self) -> str:
                return "0" * 64

        run.summary()
        assert isinstance(finished_summary(run.folder, Config()), RunSummary)
        run.summary(phase="Interrupted")
        assert finished_summary(run.folder, Config()) is None
        run.summary(config_sha256="1" * 64)
        assert finished_summary(run.folder, Config()) is None

    def test_logs(self, run) -> None:
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
        values["val-core/ppojob/addition/acc/mean@1"] = step / 30
    return StepRecord(step, 1_000.0 + 15 * step, values)


MANY_SOURCES = {f"val-core/source-{n}/acc/mean@1": 0.5 for n in range(9)}
STATES = {
    "nothing": (RunState(), NO_PODS),
    "starting": (RunState(TrainingStatus("Starting", since=1_000.0)), PODS),
    "first validation": (
        RunState(
            TrainingStatus("Training", 0, 20, "testing", 1_190.0),
            (StepRecord(0, 1_000.0, MANY_SOURCES),),
        ),
        NO_PODS,
    ),
    "training": (
        RunState(
            TrainingStatus("Training", 13, 20, "update_actor", 1_190.0),
            tuple(record(step) for step in range(13)),
        ),
        NO_PODS,
    ),
    "long": (
        RunState(
            TrainingStatus("Training", 3_001, 100_000, "gen", 1_190.0),
            tuple(record(step) for step in range(3_001)),
        ),
        NO_PODS,
    ),
    "recovering": (
        RunState(
            TrainingStatus("Recovering", 13, 20, "gen", 1_190.0, "reward: \x1b[2Jlost\nmore", 2),
            tuple(record(step) for step in range(13)),
        ),
        PODS,
    ),
    "strange": (RunState(TrainingStatus("Odd", 5, 0, "[bold]x", 9e9), (record(30),)), NO_PODS),
    "over": (
        RunState(TrainingStatus("Succeeded", 20, 20), tuple(record(n) for n in range(21))),
        NO_PODS,
    ),
}


def drawn(name: str, width: int, *, ascii_only: bool = False) -> str:
    state, waited_for = STATES[name]
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    canvas = Canvas(width, ascii_only=ascii_only)
    console.print(frame("addition-grpo", state, waited_for, now=1_194.0, canvas=canvas))
    return console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", STATES)
def test_a_frame_fits(name: str, width: int) -> None:
    lines = drawn(name, width).splitlines()
    assert all(len(line) <= min(width, 100) for line in lines)
    assert len({len(line) for line in lines}) == 1, "the border is straight"
    assert "\x1b" not in "".join(lines)
    assert len(lines) < 24


@pytest.mark.parametrize("name", STATES)
def test_a_frame_of_ascii(name: str) -> None:
    # The bar of rich picks its own characters by the console's encoding; here it is not ASCII.
    assert drawn(name, 60, ascii_only=True).replace("━", "-").replace("╸", "-").isascii()


def test_what_a_frame_says() -> None:
    text = drawn("training", 60)
    for words in (
        "addition-grpo: Training",
        "step 12 of 20",
        "60 %",
        "1 min 44 s left",
        "step 13: update_actor, 4.0 s",
        "update_actor 7.9 s + gen 5.8 s",
        "ppojob/addition mean@1  0.000 -> 0.333",
        "1.0e-07",
    ):
        assert words in text, text


def test_what_a_frame_says_of_a_start_and_a_recovery() -> None:
    assert "starting pods" in drawn("nothing", 60)
    assert "addition-reward-0      starting" in drawn("starting", 60)
    text = drawn("recovering", 60)
    assert "reward: \\x1b[2Jlost" in text
    assert "restarts: 2" in text
    assert "and 3 more" in drawn("first validation", 60)


class TestLive:
    def console(self, width: int = 60) -> Console:
        return Console(width=width, height=40, file=io.StringIO(), force_terminal=True, _environ={})

    def test_a_run(self, run) -> None:
        console = self.console()
        view = live(run, console, num_samples=1)
        run.rows(
            "rollouts",
            1,
            [
                {"row": 0, "sample": 0, "prompt": "2 + 2", "response": "[bold]4", "score": 1.0}
                | {"ground_truth": "4", "truncated": False}
            ],
        )
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

    def test_the_cursor_is_back_after_an_error(self, run) -> None:
        console = self.console()
        with pytest.raises(KeyboardInterrupt), live(run, console):
            raise KeyboardInterrupt
        assert console.file.getvalue().rstrip().endswith("\x1b[?25h")

    def test_a_closed_terminal_does_not_end_the_run(self, run) -> None:
        console = self.console()
        with live(run, console) as view:
            console.file = Hungup()
            run.status()
            run.step(1)
            view.refresh(pods)
            view.note("nobody reads this")


class Hungup(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(5, "Input/output error")
