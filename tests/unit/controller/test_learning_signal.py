from ppojob_trainer.controller.learning_signal import LearningSignal


def test_three_silent_steps_in_a_row_are_told_once() -> None:
    signal = LearningSignal()
    shares = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    scores = [0.0, 0.0], [0.0, 1.0]
    told = [signal.warning(n, share, scores[n > 6]) for n, share in enumerate(shares, start=1)]
    assert [step for step, text in enumerate(told, start=1) if text] == [6, 11]
    assert told[5] == (
        "step 6: got no learning signal for 3 steps: the responses to each prompt score the same "
        "(here 0), so no advantage is other than 0; easier prompts, more samples a prompt, or a "
        "reward that tells responses apart"
    )
    assert "score the same (here 0 to 1)" in (told[10] or "")


def test_what_is_learnt_in_the_place_of_scores_is_told_as_such() -> None:
    signal = LearningSignal()
    told = [signal.warning(step, 1.0, None) for step in range(3)]
    assert told[2] == (
        "step 2: got no learning signal for 3 steps: the responses to each prompt are alike in "
        "what is learnt in the place of scores, so no advantage is other than 0; more samples a "
        "prompt, or a higher rollout.temperature"
    )
