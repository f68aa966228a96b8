import pytest

from ppojob_trainer.algorithms.kl_controller import KlController


def test_fixed_controller_never_moves():
    controller = KlController(0.2)
    controller.update(current_kl=100.0, num_responses=100000)
    assert controller.coefficient == 0.2


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        # target 0.1, horizon 1000, 50 responses, coefficient 0.2
        (0.1, 0.2),
        (0.11, 0.2 * (1 + 0.1 * 50 / 1000)),
        # an error of 4 counts as 0.2, one of -1 as -0.2
        (0.5, 0.2 * (1 + 0.2 * 50 / 1000)),
        (0.0, 0.2 * (1 - 0.2 * 50 / 1000)),
    ],
)
def test_adaptive_controller_by_hand(current: float, expected: float):
    controller = KlController(0.2, target=0.1, horizon=1000)
    controller.update(current_kl=current, num_responses=50)
    assert controller.coefficient == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("options", [{"target": 0.0}, {"target": 0.1, "horizon": 0}])
def test_senseless_controllers_are_refused(options: dict):
    with pytest.raises(ValueError, match="must be above 0"):
        KlController(0.2, **options)
