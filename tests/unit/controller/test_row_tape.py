from pathlib import Path

import pytest

from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.journal import Event, Journal, Rewound, RowsKept
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.row_tape import BatchKey, RowTape, read_recording, read_tape
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.messages.saving import FileEntry

PURPOSES = {"v": "validation", "g": "greedy"}


def kept(name: str, settings: str = "now") -> RowsKept:
    """`3`, `3.1`, `g3`, `v3`: the rows of step 3, of its second round, greedy ones, validation."""
    purpose = PURPOSES.get(name[0], "train")
    step, _, round_ = name.lstrip("gv").partition(".")
    return RowsKept(
        time=0.0,
        purpose=purpose,
        step=int(step),
        round=int(round_ or 0),
        settings=settings,
        prompts="p",
        files=(),
    )


def events(story: str) -> list[Event]:
    """`<2` goes back to step 2; `3!` is kept under other settings."""
    told: list[Event] = []
    for word in story.split():
        if word.startswith("<"):
            told.append(Rewound(time=0.0, from_step=9, to_step=int(word[1:]), reason=""))
        else:
            told.append(kept(word.rstrip("!"), "then" if word.endswith("!") else "now"))
    return told


def names(batches: dict[BatchKey, RowsKept]) -> str:
    return " ".join(
        next((letter for letter, purpose in PURPOSES.items() if purpose == key.purpose), "")
        + str(key.step)
        + (f".{key.round}" if key.round else "")
        for key in sorted(batches, key=lambda key: key.order)
    )


@pytest.mark.parametrize(
    ("story", "on_the_disk", "replayed"),
    [
        ("<0", "", ""),
        ("<0 v0 1 2 v2", "v0 1 2 v2", ""),
        ("<0 v0 1 2 v2 <0", "v0 1 2 v2", "v0 1 2 v2"),
        ("<0 1 2 v2 3 <2", "1 2 v2 3", "v2 3"),
        ("<0 1 2 3 <2 4", "1 2 3 4", "3"),
        # Step 2 is made anew: what was drawn behind it is of other weights.
        ("<0 1 2 v2 3 <1 2", "1 2", ""),
        ("<0 1 2 v2 3 <1 2 <1", "1 2", "2"),
        # A step is missing, as under a reward function that failed.
        ("<0 1 v1 3 <0", "1 v1", "1 v1"),
        # The greedy rows of a step are kept before those that are compared with them.
        ("<0 g1 1 g2 <0", "g1 1", "g1 1"),
        ("<0 g1 1 <0 g1 1", "g1 1", ""),
        # Kept under other settings: neither they nor what lies behind them counts.
        ("<0 1! 2! <0", "", ""),
        ("<0 1 2 3 <0 1! <0", "", ""),
        ("<0 1! 2! <0 1 2 <1", "1 2", "2"),
        # Rounds of dynamic sampling: those that were kept are taken, the others made anew.
        ("<0 1 1.1 v1 2 <0", "1 1.1 v1 2", "1 1.1 v1 2"),
        ("<0 1 1.1 2 2.1 <1", "1 1.1 2 2.1", "2 2.1"),
        ("<0 1 1.1 2 <0 1.2", "1 1.1 1.2", "1 1.1"),
        ("<0 1 1.1 1.2 2 <0 1.1", "1 1.1", "1"),
        ("<0 1 1.1 v1 2 <0 1", "1", ""),
        ("<0 1 1.1! 1.2 <0", "1 1.2", "1 1.2"),
    ],
)
def test_the_journal_says_what_is_taken_from_the_disk(story, on_the_disk, replayed):
    tape = read_tape(events(story), "now")
    assert (names(tape.kept), names(tape.before)) == (on_the_disk, replayed)


def test_a_recording_counts_under_any_settings():
    assert names(read_tape(events("<0 1! 2! v2!"), None).kept) == "1 2 v2"


def test_a_recording_whose_journal_is_damaged_is_refused_by_its_place(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "journal.jsonl").write_text("no event\n")
    with pytest.raises(ConfigError, match=r"spec\.rollout\.replay: got .*: journal\.jsonl:1: no"):
        read_recording(tmp_path, takes_given=False)


def test_rows_that_a_checkpoint_holds_are_taken_from_it_until_the_job_goes_back(tmp_path: Path):
    """Also by a controller that came back when they had been scored and kept."""
    cursor = manifest.DataCursor(epoch=0, cursor=0, sha256="d")
    progress = manifest.Progress(
        step=2,
        data=cursor,
        kl_coefficient=None,
        metrics_lines=2,
        tokens=0,
        seconds=0.0,
    )
    files = tuple(
        FileEntry(path=path, size_bytes=0, sha256="", role="actorRollout", rank=0)
        for path in ("actorRollout/rank-00000/rng", "ahead/train/a", "ahead/train/b")
    )
    found = manifest.Manifest(
        job_uid="", config_sha256="", code_version="", progress=progress, files=files
    )
    folder = tmp_path / "checkpoints" / "step-000002"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest.encode(found))
    journal = Journal(tmp_path / "checkpoints" / "journal.jsonl")
    batches = [Batch("train", step, [], 1, 1) for step in (3, 4)]

    def taken_from_the_disk(story: str) -> list[bool]:
        for event in events(story):
            journal.append(event)
        tape = RowTape(journal, tmp_path, "now")
        tape.read()
        found = list(map(tape.is_replayed, batches))
        if found[0]:
            assert tape.location(batches[0]) == ("checkpoints/step-000002/ahead/train", ["a", "b"])
        return found

    assert taken_from_the_disk("<0 1 2") == [False, False]
    assert taken_from_the_disk("<2") == [True, False]
    assert taken_from_the_disk("3") == [True, False]
    assert taken_from_the_disk("<0") == [False, False]
