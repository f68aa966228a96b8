import msgspec
from run_progress import progress_behind

from ppojob_trainer.checkpoint import journal
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller import journal_state
from ppojob_trainer.data.score_history import RowHistory

STATEFUL = frozenset({"actor"})
BEGINNING = progress_behind(0)


def behind(step: int, **values: float) -> Progress:
    known = {prompt: (one, 1.0) for prompt, one in values.items()}
    return msgspec.structs.replace(progress_behind(step), prompt_values=known)


ONE, TWO = behind(1, a=2.0), behind(2, a=2.0, b=3.0)
THREE = behind(3, a=4.0, b=3.0)


def done(before: Progress, after: Progress) -> journal.StepDone:
    return journal.StepDone(time=0.0, progress=journal_state.changes(before, after))


def resumed(progress: Progress) -> journal.Resumed:
    return journal.Resumed(time=0.0, progress=progress)


def read(*events: journal.Event) -> journal_state.JournalState:
    return journal_state.read_journal_state(events, STATEFUL)


def test_a_step_tells_the_values_that_it_changed() -> None:
    assert journal_state.changes(TWO, THREE) == behind(3, a=4.0)
    assert journal_state.changes(TWO, TWO) == behind(2)


def test_a_step_tells_the_rows_that_it_has_drawn() -> None:
    first, second = RowHistory(1, 1, 2, 1.5, 0.75), RowHistory(1, 2, 2, 0.5, 0.25)
    one = msgspec.structs.replace(progress_behind(1), rows_seen={"4": first}, sampler_state="7")
    both = {"4": first, "10": second}
    two = msgspec.structs.replace(progress_behind(2), rows_seen=both, sampler_state="8")
    told = journal_state.changes(one, two)
    assert told == msgspec.structs.replace(two, rows_seen={"10": second})
    assert read(
        resumed(BEGINNING), done(BEGINNING, one), journal.StepDone(time=0.0, progress=told)
    ) == read(resumed(two))


STEPS = [resumed(BEGINNING), done(BEGINNING, ONE), done(ONE, TWO), done(TWO, THREE)]


def test_steps_add_up_to_the_state_behind_the_last() -> None:
    assert read(*STEPS).progress == THREE
    assert STEPS[0] == resumed(BEGINNING), "what was read stays"


def test_what_was_thrown_away_is_forgotten() -> None:
    rewound = journal.Rewound(time=0.0, from_step=3, to_step=1, reason="lost")
    assert read(*STEPS, rewound).progress is None
    assert read(*STEPS, rewound, resumed(ONE)).progress == ONE
    other = behind(2, a=2.0, c=7.0)
    assert read(*STEPS, rewound, resumed(ONE), done(ONE, other)).progress == other
    attempt = journal.AttemptStarted(time=0.0, role="actor", attempt=2, world_size=1)
    assert read(*STEPS, attempt).progress is None
    assert read(*STEPS, attempt, resumed(TWO), done(TWO, THREE)).progress == THREE


def test_a_step_that_is_validated_late_keeps_its_values() -> None:
    trained = journal.StepTrained(
        time=0.0, progress=journal_state.without_tables(THREE), metrics={}
    )
    ended = [*STEPS[:3], trained, resumed(THREE)]
    assert read(*ended).progress == THREE
    assert read(*ended).unvalidated == trained
    validated = msgspec.structs.replace(THREE, seconds=9.0)
    assert read(*ended, done(THREE, validated)).progress == validated


def test_a_checkpoint_that_is_under_way_has_the_values_of_its_step() -> None:
    begun = journal.CheckpointBegun(time=0.0, progress=journal_state.without_tables(TWO), files=())
    position = read(*STEPS[:3], begun, *STEPS[3:])
    assert position.begun == msgspec.structs.replace(begun, progress=TWO)
    assert position.progress == THREE
    saved = journal.CheckpointSaved(time=0.0, step=2, size_bytes=1)
    assert read(*STEPS[:3], begun, saved, *STEPS[3:]).begun is None
