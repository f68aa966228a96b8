import pytest

from ppojob_trainer.checkpoint.journal import Event, Rewound, RowsKept
from ppojob_trainer.controller.row_tape import read_tape


def kept(name: str, settings: str = "now") -> RowsKept:
    """`3` or `v3`: the rows of step 3, or of the validation behind it."""
    purpose = "validation" if name.startswith("v") else "train"
    step = int(name.removeprefix("v"))
    return RowsKept(time=0.0, purpose=purpose, step=step, settings=settings, prompts="p", files=())


def events(story: str) -> list[Event]:
    """`<2` goes back to step 2; `3!` is kept under other settings."""
    told: list[Event] = []
    for word in story.split():
        if word.startswith("<"):
            told.append(Rewound(time=0.0, from_step=9, to_step=int(word[1:]), reason=""))
        else:
            told.append(kept(word.rstrip("!"), "then" if word.endswith("!") else "now"))
    return told


def names(batches: dict[tuple[str, int], RowsKept]) -> str:
    ordered = sorted(batches, key=lambda key: (key[1], key[0]))
    return " ".join(
        f"v{step}" if purpose == "validation" else str(step) for purpose, step in ordered
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
        ("<0 1 v1 3 <0", "1 v1 3", "1 v1"),
        # Kept under other settings: neither they nor what lies behind them counts.
        ("<0 1! 2! <0", "", ""),
        ("<0 1 2 3 <0 1! <0", "", ""),
        ("<0 1! 2! <0 1 2 <1", "1 2", "2"),
    ],
)
def test_the_journal_says_what_is_taken_from_the_disk(story, on_the_disk, replayed):
    tape = read_tape(events(story), "now")
    assert (names(tape.kept), names(tape.before)) == (on_the_disk, replayed)


def test_a_recording_counts_under_any_settings():
    assert names(read_tape(events("<0 1! 2! v2!"), None).kept) == "1 2 v2"
