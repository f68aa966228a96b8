import pytest

from ppojob_trainer.checkpoint.journal import Event, Rewound, RowsKept
from ppojob_trainer.controller.row_tape import BatchKey, read_tape

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
