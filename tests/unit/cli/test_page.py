import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tiny_jobs
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from run_progress import progress_behind

from ppojob_api import contract
from ppojob_cli.main import main
from ppojob_cli.run_folder import locked
from ppojob_cli.run_page.charts import BOTTOM, TOP, axis, thinned
from ppojob_cli.run_page.facts import read_runs
from ppojob_cli.run_page.sampling import chosen, clipped
from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
    CheckpointRefused,
    ControllerStarted,
    Event,
    Journal,
    Rewound,
    RunBegan,
    StepDone,
)
from ppojob_trainer.controller.samples import Place

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror='alert(1)'>\"\u202e\x1b[31m\0"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_VOID = {"meta", "input"}


class Page(HTMLParser):
    """A page as a browser parses it; every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inline: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in {"script", "style"}:
            self.inline[self._open[-1]] = data
        elif data.strip():
            self.words.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def made(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["page", *map(str, arguments)])


def page_of(folder: Path, *arguments: object) -> Page:
    output = folder.parent / "page.html"
    done = made(folder, *arguments, "-o", output)
    assert done.exit_code == 0, done.output
    return Page(output.read_text("utf-8"))


def rows(step: int, *scores: float, response: str = "an answer", **more: object) -> list[dict]:
    row = {"step": step, "prompt": "<|user|>\n1+1", "data_source": "tiny", "response": response,
           "ground_truth": "2", "response_tokens": 3, "truncated": False,
           "reward_values": json.dumps({"acc": 1.0}), **more}  # fmt: skip
    return [
        {**row, "row": number, "sample": number, "score": score}
        for number, score in enumerate(scores)
    ]


def done(step: int) -> StepDone:
    return StepDone(time=1_000.0 + step, progress=progress_behind(step))


def journal(folder: Path, *events: Event) -> None:
    (folder / "checkpoints").mkdir()
    written = Journal(folder / "checkpoints" / "journal.jsonl")
    for event in events:
        written.append(event)


def test_a_run_explains_itself(run) -> None:
    manifest = tiny_jobs.write_manifest(run.folder, run.folder)
    manifest.rename(run.folder / "job.yaml")
    run.validation(0.25)
    for step in (1, 2, 3):
        run.step(step, reward=step / 10, **{"actor/skipped": 0.5})
    run.status(step=3, message="a role was lost", total_steps=24)
    run.rows("rollouts", 2, rows(2, 0.25, 0.75, 0.5, 0.5))
    journal(run.folder, RunBegan(time=1_000.0),
            ControllerStarted(time=1_000.0, attempt=1, code_version="9.8.7"), done(3))  # fmt: skip
    page = page_of(run.folder, "--samples", 1)
    said = " | ".join(page.words)
    for word in (
        "Training, 3 of 24 steps done", "a role was lost", f"{run.folder / 'model'}",
        "grpo, 4 prompts x 4 samples a step", "began 1970-01-01 00:16 UTC", "9.8.7",
        "0.100 \N{RIGHTWARDS ARROW} 0.300", "Reward", "Validation", "Entropy", "Response length",
        "Throughput", "Time by stage", "score 0.750", "score 0.250", "3 tokens",
        "learningRate: 0.001",
    ):  # fmt: skip
        assert word in said, word
    assert [one["class"] for one in page.all("article")] == [
        "sample best",
        "sample worst",
        "sample random",
    ]
    reward = next(one for one in page.all("polyline") if one["data-at"] == "1 0.1 2 0.2 3 0.3")
    assert reward["data-of"] == "a run"
    figures = [one["data-name"] for one in page.all("figure")]
    assert figures.index("actor/skipped") > figures.index("timing_s/<stage>")
    stages = [one["data-of"] for one in page.all("polygon")]
    assert stages == ["update_actor", "gen"], "of the largest first"


def test_a_run_that_its_process_has_left_is_not_under_way(run) -> None:
    tiny_jobs.write_manifest(run.folder, run.folder).rename(run.folder / "job.yaml")
    run.step(1)
    run.status(step=1)
    with locked(run.folder):
        assert "Training, 1 of 20 steps done" in page_of(run.folder).words
    assert "Stopped at once while training, 1 of 20 steps done" in page_of(run.folder).words


def test_nothing_is_asked_of_the_network_and_only_our_script_runs(run) -> None:
    run.step(1)
    page = page_of(run.folder)
    policy = page.all("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        digest = hashlib.sha256(page.inline[tag].encode()).digest()
        assert f"{directive} 'sha256-{base64.b64encode(digest).decode()}'" in policy["content"]
    assert policy["content"].startswith("default-src 'none'; ")
    assert not re.search(r"https?:|url\(|@import|innerHTML|fetch\(", page.text)
    assert not {"link", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert all({"src", "href", "style"}.isdisjoint(attributes) for _, attributes in page.tags)


def test_no_text_of_a_run_becomes_markup(run_called) -> None:
    run = run_called("<script>alert(0)<")
    folder = run.folder
    (folder / "job.yaml").write_text(f"kind: {json.dumps(HOSTILE)}\n")
    run.step(1, **{f"val-core/{HOSTILE}/acc/mean@1": 1.0, f"timing_s/{HOSTILE}": 1.0})
    run.status(message=HOSTILE, notices=(HOSTILE,))
    values = json.dumps({HOSTILE: HOSTILE, "n": 1.0})
    run.rows("rollouts", 1, rows(1, 0.0, 1.0, response=HOSTILE, prompt=HOSTILE,
                                 ground_truth=HOSTILE, reward_values=values))  # fmt: skip
    journal(folder, done(1), Rewound(time=1.0, from_step=1, to_step=0, reason=HOSTILE))
    page = page_of(folder)
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not [name for _, own in page.tags for name in own if name.startswith("on")]
    assert not {"\u202e", "\x1b", "\0"} & set(page.text)
    seen = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b").replace("\0", "\\x00")
    assert page.text.count(escape(seen)) >= 10, "and what it was is there to read"


def test_environment_of_pods_stays_here(run) -> None:
    pods = [{"env": [{"name": "WANDB_API_KEY", "value": "secret-of-the-pods"}]}]
    manifest = tiny_jobs.write_manifest(run.folder, run.folder, pods=pods)
    manifest.rename(run.folder / "job.yaml")
    page = page_of(run.folder)
    assert "learningRate" in page.text
    assert "secret-of-the-pods" not in page.text


def test_several_runs_lie_over_each_other(run, run_called, tmp_path: Path) -> None:
    other = run_called("other")
    for own, seed in ((run, 0), (other, 1)):
        manifest = tiny_jobs.write_manifest(own.folder, tmp_path, seed=seed)
        manifest.rename(own.folder / "job.yaml")
        own.step(1, reward=0.1)
        own.step(2, reward=0.2 + seed)
    page = page_of(run.folder, other.folder)
    rewards = [one["data-at"] for one in page.all("polyline")[:2]]
    assert rewards == ["1 0.1 2 0.2", "1 0.1 2 1.2"]
    assert len(page.all("input")) == 3, "a box a run, and the search"
    place = page.words.index("Where their configurations differ")
    assert page.words[place + 1 :][:6] == ["a run", "other", "data.seed", "0", "1", "seed"]


def test_what_happened_to_a_run(run) -> None:
    run.step(1)
    attempt = {"role": "critic", "world_size": 1}
    journal(
        run.folder,
        ControllerStarted(time=1.0, attempt=1, code_version="1"),
        Rewound(time=1.0, from_step=0, to_step=0, reason="start"),
        AttemptStarted(time=1.0, attempt=1, **attempt),
        done(1), done(2), done(3),
        AttemptStarted(time=2.0, attempt=2, **attempt),
        CheckpointRefused(time=2.0, step=3, file="weights", reason="size"),
        Rewound(time=2.0, from_step=3, to_step=2, reason="rank 0 of critic ended"),
        done(3),
        ControllerStarted(time=3.0, attempt=2, code_version="1"),
        Rewound(time=3.0, from_step=0, to_step=2, reason="start"),
        done(3),
        AttemptStarted(time=4.0, attempt=3, **attempt),
    )  # fmt: skip
    (read,) = read_runs([run.folder])
    assert [(mark.step, mark.text) for mark in read.marks] == [
        (3, "the checkpoint of step 3 is damaged: weights: size"),
        (3, "back from step 3 to step 2: rank 0 of critic ended"),
        (2, "started again: critic"),
        (3, "back from step 3 to step 2: the job was started again"),
        (2, "started again: controller"),
        (3, "started again: critic"),
    ]


def test_runs_of_which_little_is_there(run) -> None:
    run.metrics.write_bytes(b'{"step":1,"time":5.0,"critic/score/mean":0.5}\n{"step":2,"ti')
    (run.folder / "job.yaml").write_text("kind: [")
    (run.folder / "status.json").write_bytes(b"{")
    (run.folder / "rollouts" / "step-000001.parquet").mkdir(parents=True)
    (run.folder / "rollouts" / "step-000001.parquet" / "part-00000.parquet").write_bytes(b"PAR1")
    (run.folder / "checkpoints").mkdir()
    (run.folder / "checkpoints" / "journal.jsonl").write_bytes(b"nonsense\n")
    said = " | ".join(page_of(run.folder).words)
    assert "Starting, 1 step done" in said
    assert "Not read" in said
    assert "journal.jsonl:1" in said
    run.metrics.unlink()
    page_of(run.folder)


def test_what_the_data_gives_is_told_from_what_the_policy_drew(run) -> None:
    run.step(1)
    given = {"segments": [{"tokens": 3, "version": -1}]}
    run.rows("rollouts", 1, [{**rows(1, 1.0)[0], **given}, rows(1, 0.0, 0.5)[1]])
    said = " | ".join(page_of(run.folder).words)
    assert "row 0, 3 tokens, given by the data" in said
    assert said.count("given by the data") == 1


def test_steps_that_are_asked_for(run) -> None:
    run.step(1)
    for step in range(1, 13):
        run.rows("rollouts", step, rows(step, 0.0, 1.0))
    run.rows("validation", 6, rows(6, 0.0, 1.0))

    def titles(*arguments: object) -> list[str]:
        found = page_of(run.folder, *arguments).words
        return [word for word in found if re.fullmatch(r"(Step|Validation behind step) \d+", word)]

    held_out = "Validation behind step 6"
    assert titles() == ["Step 1", "Step 3", "Step 6", "Step 9", "Step 12", held_out]
    assert titles("--step", 2, "--step", 6) == ["Step 2", "Step 6", held_out]
    absent = made(run.folder, "--step", 2, "--step", 13, "--step", 0)
    why = "no run has kept responses of it; steps from 1 to 12\n"
    assert absent.stderr == f"--step: got 0, 13: {why}"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["none"], "RUN: got none: "),
        (["."] * 9, "RUN: got 9: "),
        ([".", *["--step", "1"] * 11], "--step: got 11: "),
        ([".", "--step", "2"], "--step: got 2: no run has kept responses of it; no --step"),
        ([".", "-o", "no/such/page.html"], "--output: got no/such/page.html: "),
    ],
)
def test_what_is_refused(run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], where: str):
    run.step(1)
    monkeypatch.chdir(run.folder)
    refused = made(*arguments)
    assert refused.exit_code == contract.EXIT_INVALID
    assert refused.stderr.startswith(where)
    assert not (run.folder / "page.html").exists()


def test_a_page_of_eight_large_runs_is_small(run_called) -> None:
    folders = []
    for number in range(8):
        run = run_called(f"run-{number}")
        folders.append(run.folder)
        for step in range(40):
            values = {f"val-aux/source/{name}/mean@1": (step * name) % 1.7 for name in range(200)}
            values |= {f"val-core/{name}/acc/mean@1": (step * name) % 1.7 for name in range(50)}
            run.step(step, **values)
        lost = (Rewound(time=1.0, from_step=at, to_step=at, reason="<&>" * 999) for at in range(99))
        journal(run.folder, done(1), *lost)
        run.status(message="<&>" * 9_999, notices=("<&>" * 999,) * 99)
        for step in range(5):
            run.rows("rollouts", step, rows(step, *range(20), response="<&>" * 5_000))
    before = time.monotonic()
    page = page_of(folders[0], *folders[1:], "--samples", 5)
    assert time.monotonic() - before < 30
    assert len(page.text.encode()) < 2_000_000
    assert "more are in metrics.jsonl alone" in page.text


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(2, 60))
def test_thinned_curves_keep_their_peaks(values: list[float], limit: int) -> None:
    points = list(enumerate(values))
    kept = thinned(points, limit)
    assert len(kept) <= limit + 1
    assert kept == sorted(set(kept) & set(points))
    assert kept[-1] == points[-1]
    assert {min(values), max(values)} <= {value for _, value in kept}


@given(st.lists(NUMBERS, max_size=5))
def test_any_numbers_have_an_axis(values: list[float]) -> None:
    found = axis(values, BOTTOM, TOP)
    places = [place for place, _ in found.ticks]
    assert places == sorted(places, reverse=True)
    assert 2 <= len(places) <= 12
    assert all(TOP <= place <= BOTTOM for place in [*places, *map(found.place, values)])
    assert len({text for _, text in found.ticks}) == len(places)


def test_ticks_are_round() -> None:
    assert [text for _, text in axis([0.12, 0.87], BOTTOM, TOP).ticks] == [
        "0", "0.2", "0.4", "0.6", "0.8", "1",
    ]  # fmt: skip
    assert [text for _, text in axis([0, 7], BOTTOM, TOP, whole=True).ticks] == [
        "0", "2", "4", "6",
    ]  # fmt: skip


def test_best_worst_and_others() -> None:
    places = [Place(row, row, score) for row, score in enumerate([0.5, 1, 0, float("nan"), 1, 0.2])]
    assert chosen(places, 1, 0) == {1: "best", 2: "worst"} | {
        row: "random" for row in chosen(places, 1, 0) if row not in {1, 2}
    }
    assert len(chosen(places, 1, 0)) == 3
    assert chosen(places, 3, 0) == {
        0: "best", 1: "best", 4: "best", 2: "worst", 5: "worst", 3: "random",
    }  # fmt: skip
    alike = [Place(row, row, 1.0) for row in range(9)]
    assert list(chosen(alike, 1, 0).values()) == ["random"] * 3


@given(st.text(max_size=80), st.integers(1, 60), st.booleans())
def test_cut_texts_keep_to_their_bytes(text: str, limit: int, from_end: bool) -> None:
    found = clipped(text, limit, from_end=from_end)
    assert len(escape(found).encode()) <= limit + len(" ...")
    assert all(line.isprintable() for line in found.split("\n"))
