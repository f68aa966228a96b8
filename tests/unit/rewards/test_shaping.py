import random

import pytest

from ppojob_api.v1alpha1.algorithm import OverlongPenaltySpec
from ppojob_trainer.rewards.shaping import ScoreShaping, overlong_penalty


def literal(length: int, limit: int, cache: int, factor: float) -> float:
    """Equation 13 of DAPO as it stands there."""
    if length <= limit - cache:
        return 0.0
    if length <= limit:
        return factor * ((limit - cache) - length) / cache
    return -factor


def test_equal_to_the_equation():
    draw = random.Random(3)
    for _ in range(500):
        limit = draw.randint(1, 50)
        cache, length = draw.randint(1, limit), draw.randint(0, limit)
        factor = draw.randint(1, 64) / 16
        penalty = OverlongPenaltySpec(buffer_tokens=cache, factor=factor)
        ours = overlong_penalty(length, limit, penalty)
        assert ours == pytest.approx(literal(length, limit, cache, factor), abs=1e-12)


def test_numbers_of_verl():
    # min(-exceed / buffer * factor, 0) of its DAPO reward manager: limit 20480, buffer 4096.
    lengths = [16384, 16385, 18000, 20479, 20480]
    theirs = [0.0, -0.000244140625, -0.39453125, -0.999755859375, -1.0]
    penalty = OverlongPenaltySpec(buffer_tokens=4096)
    assert [overlong_penalty(length, 20480, penalty) for length in lengths] == theirs


def test_scores_are_clipped_first_and_then_penalised():
    """TRL takes `missing_eos_penalty` off, OpenRLHF clips to `reward_clip_range`."""
    shaping = ScoreShaping(-1.0, 2.0, 0.5, OverlongPenaltySpec(buffer_tokens=4), 8)
    scores, lengths = [5.0, -3.0, 0.25, 1.0], [4, 8, 6, 2]
    shaped = shaping.shaped(scores, lengths, [False, True, False, True])
    assert shaped == [2.0, -1.0 - 0.5 - 1.0, 0.25 - 0.5, 0.5]
    assert ScoreShaping().shaped(scores, lengths, [True] * 4) == scores
