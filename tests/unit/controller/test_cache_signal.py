from ppojob_trainer.controller.cache_signal import CacheSignal


def test_an_engine_without_room_is_told_once() -> None:
    signal = CacheSignal()
    for few in ({}, {"rows": 8}, {"rows": 8, "preempted": 3}):
        assert signal.warning(1, few) is None
    many = {"rows": 8, "preempted": 4}
    assert (signal.warning(2, many) or "").startswith("step 2: got 0.5 preemptions a row: ")
    assert signal.warning(3, many) is None
