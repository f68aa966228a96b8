"""Draws requests by an engine alone, without the rows that they are of; many engines a process."""

import gc
from collections.abc import Sequence

from ppojob_trainer.rollout import protocol


def close_quickly() -> None:
    """Look for the garbage of engines among what they made, not in all that is loaded by now.

    An engine that is closed has it looked for twice, and half a million objects are vLLM's.
    """
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None


def generate(
    engine: protocol.RolloutEngine, requests: Sequence[protocol.Request]
) -> list[protocol.Finished]:
    """Draw `requests`, of distinct ids, and return them in their order: one phase.

    Raises:
        RolloutError: If the engine is busy or loses a request.
        ValueError: If an engine refuses a request.
    """
    finished: dict[str, protocol.Finished] = {}
    with protocol.generation_phase(engine) as submit:
        for request in requests:
            submit(request)
        while engine.has_work():
            finished |= {response.request_id: response for response in engine.step()}
    lost = [request.request_id for request in requests if request.request_id not in finished]
    if lost:
        raise protocol.lost_requests(lost)
    return [finished[request.request_id] for request in requests]
