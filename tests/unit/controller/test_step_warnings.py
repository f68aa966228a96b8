from ppojob_trainer.controller.step_warnings import StepWarnings
from ppojob_trainer.metrics.step_metrics import RowFigures, StepRows, row_metrics


def test_three_silent_steps_in_a_row_are_told_once() -> None:
    warnings = StepWarnings()
    shares = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    scores = [0.0, 0.0], [0.0, 1.0]
    told = [warnings.no_signal(n, share, scores[n > 6]) for n, share in enumerate(shares, start=1)]
    assert [step for step, text in enumerate(told, start=1) if text] == [6, 11]
    assert told[5] == (
        "step 6: got no learning signal for 3 steps: the responses to each prompt score the same "
        "(here 0), so no advantage is other than 0; easier prompts, more samples a prompt, or a "
        "reward that tells responses apart"
    )
    assert "score the same (here 0 to 1)" in (told[10] or "")


def test_a_step_that_is_repeated_after_a_loss_counts_once() -> None:
    warnings = StepWarnings()
    told = [warnings.no_signal(step, 1.0, [0.0]) for step in (1, 2, 1, 2, 3)]
    assert [text is not None for text in told] == [False, False, False, False, True]


def test_what_is_learnt_in_the_place_of_scores_is_told_as_such() -> None:
    warnings = StepWarnings()
    told = [warnings.no_signal(step, 1.0, None) for step in range(3)]
    assert told[2] == (
        "step 2: got no learning signal for 3 steps: the responses to each prompt are alike in "
        "what is learnt in the place of scores, so no advantage is other than 0; more samples a "
        "prompt, or a higher rollout.temperature"
    )


def test_an_engine_without_room_is_told_once() -> None:
    warnings = StepWarnings()
    for few in ({}, {"rows": 8}, {"rows": 8, "preempted": 3}):
        assert warnings.no_room(1, few) is None
    many = {"rows": 8, "preempted": 4}
    assert (warnings.no_room(2, many) or "").startswith("step 2: got 0.5 preemptions a row: ")
    assert warnings.no_room(3, many) is None


def test_calls_that_mostly_fail_are_told_once() -> None:
    warnings = StepWarnings()
    assert warnings.failed_calls(1, 0.49) is None
    told = warnings.failed_calls(2, 0.5) or ""
    assert told.startswith("step 2: got 50% of the calls of tools, ")
    assert warnings.failed_calls(3, 1.0) is None


def test_rows_whose_programs_mostly_fail_are_told_whatever_their_other_rows_ask() -> None:
    failed = RowFigures(2, 0, 1, [], 0, turn_scores=[0.0])
    long = RowFigures(40, 0, 0, [], 0, turn_scores=[0.0] * 20)
    rows = StepRows([], [], [1] * 3, [1] * 3, [False] * 3, [{}] * 3, [failed, failed, long])
    metrics = row_metrics(rows, max_prompt_tokens=9, is_scored=False)
    share = metrics["user/failed_rows"]
    assert metrics["tool/failed_share"] < 0.1
    told = StepWarnings().failed_calls(1, metrics["tool/failed_share"], share) or ""
    assert told.startswith("step 1: got 67% of the rows in which a user or program failed")
