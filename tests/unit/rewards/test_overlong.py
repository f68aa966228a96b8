import random

import pytest

from ppojob_trainer.rewards.overlong import OverlongPenalty


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
        (ours,) = OverlongPenalty(limit, cache, factor).rewards([length])
        assert ours == pytest.approx(literal(length, limit, cache, factor), abs=1e-12)


def test_numbers_of_verl():
    # min(-exceed / buffer * factor, 0) of its DAPO reward manager: limit 20480, buffer 4096.
    lengths = [16384, 16385, 18000, 20479, 20480]
    theirs = [0.0, -0.000244140625, -0.39453125, -0.999755859375, -1.0]
    assert OverlongPenalty(20480, 4096, 1.0).rewards(lengths) == theirs
