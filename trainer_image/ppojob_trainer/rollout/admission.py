"""What every engine checks before it does what it is asked for."""

from ppojob_trainer.rollout.protocol import Request, RolloutEngine, RolloutError


def check_idle(engine: RolloutEngine, what: str) -> None:
    """Refuse what would change the responses under way.

    Raises:
        RolloutError: If requests are in flight.
    """
    if engine.has_work():
        raise RolloutError(f"{what}: requests are in flight; finish or abort them first")


def check_request(request: Request, *, max_model_tokens: int, vocab_size: int) -> None:
    """Refuse a request that the engine could not serve in full.

    Raises:
        ValueError: One line: which request, what it has, what is allowed.
    """
    where = f"request {request.request_id!r}"
    if not request.prompt:
        raise ValueError(f"{where}: got an empty prompt: a response needs a token to follow")
    lowest, highest = min(request.prompt), max(request.prompt)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(
            f"{where}: got token {wrong}: not in the model's vocabulary; allowed 0 to "
            f"{vocab_size - 1}"
        )
    total = len(request.prompt) + request.sampling.max_tokens
    if total > max_model_tokens:
        raise ValueError(
            f"{where}: got {len(request.prompt)} prompt tokens and up to "
            f"{request.sampling.max_tokens} response tokens: {total} exceed the engine's length; "
            f"at most {max_model_tokens}"
        )
