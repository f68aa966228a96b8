from ppojob_trainer.controller.failure_signal import FailureSignal


def test_calls_that_mostly_fail_are_told_once() -> None:
    signal = FailureSignal()
    assert signal.warning(1, 0.49) is None
    assert (signal.warning(2, 0.5) or "").startswith("step 2: got 50% of the calls of tools, ")
    assert signal.warning(3, 1.0) is None
