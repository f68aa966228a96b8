"""The interface of rollout engines.

`submit` queues requests, and every `step` advances the running ones by about one token and returns
those that ended. `agents.driver` drives it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ppojob_trainer.errors import PPOJobError
from ppojob_trainer.rollout.structured_output import Grammar

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Data types by their names in `spec`."""

FinishReason = Literal["stop", "length", "abort"]


class RolloutError(PPOJobError):
    """An engine was called in a state that does not allow it, or broke its contract."""


@dataclass(frozen=True, slots=True)
class StopTexts:
    """Stop strings that may have several tokens (``</search>``).

    A response ends with the token that completes one, which stays whole. `decode` gives the text of
    token ids. `before` are tokens of the same turn that an earlier request generated.
    """

    texts: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]
    before: tuple[int, ...] = ()

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether the last of `tokens` completes one of the texts.

        Only as many tokens are decoded as may contain one: a token has at least a byte.
        """
        window = max(len(text.encode()) for text in self.texts) + 4
        held = tokens if len(tokens) >= window else (*self.before, *tokens)
        tail = self.decode(held[-window:])
        return any(text in tail for text in self.texts)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one response.

    The order is vLLM's: grammar mask, repetition penalty, temperature, then min-p, top-k and top-p.
    The rest is renormalized, and its log-probabilities are reported.
    """

    temperature: float  # 0 takes the most likely token (reported as at temperature 1)
    top_p: float  # 1 for no limit
    top_k: int  # -1 for no limit
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()  # including the model's own end-of-sequence ids
    stop_texts: StopTexts | None = None
    min_p: float = 0.0  # 0 for no limit
    repetition_penalty: float = 1.0  # 1 for none
    grammar: Grammar | None = None

    def with_stop_texts(
        self, texts: tuple[str, ...], decode: Callable[[Sequence[int]], str]
    ) -> "SamplingParams":
        """Return these with more stop strings."""
        own = self.stop_texts or StopTexts((), decode)
        return replace(self, stop_texts=replace(own, texts=(*own.texts, *texts)))

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether the last of a response's tokens completes a stop string."""
        return self.stop_texts is not None and self.stop_texts.ends(tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """One sample of one prompt, which has at least one token.

    The id is unique in the engine; the seed is that of the sample (`sampling.sample_seed`).
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    images: bytes = b""  # images of the prompt, packed by `data.images.packed`
    later: tuple[int, ...] = ()  # see `MediaForm.places`


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished response."""

    request_id: str
    tokens: tuple[int, ...]  # including the token that ended it
    logprobs: tuple[float, ...]  # of the sampled distribution, see `SamplingParams`
    finish_reason: FinishReason
    policy_version: int
    # (prompt and all tokens but the last, layers, k) expert numbers, of one byte if the model has
    # at most 256 experts, else two; empty if not recorded
    experts: bytes = b""


def nan_error(request_id: str, policy_version: int) -> RolloutError:
    """Return the error of a model that gives NaN for a request's probabilities."""
    return RolloutError(
        f"request {request_id!r}: got NaN for the probability of a token: the weights of version "
        f"{policy_version} hold numbers that are not finite, or overflow the engine's type"
    )


def lost_requests(request_ids: Sequence[str]) -> RolloutError:
    """Return the error of an engine without work while requests have no response."""
    return RolloutError(
        f"generate: the engine lost {len(request_ids)} requests, first {request_ids[0]!r}"
    )


class RolloutEngine:
    """A rollout engine, called from one thread; this base class generates nothing."""

    policy_version = 0
    """Version of the last `load_weights`."""

    def submit(self, request: Request) -> None:
        """Queue a request; ValueError if its id is in use, or the engine cannot serve it."""
        raise RolloutError(f"request {request.request_id!r}: this job generates nothing")

    def step(self) -> list[Finished]:
        """Advance running requests by about one token; return finished ones as submitted.

        Raises RolloutError if the model gives NaN for a request's probabilities.
        """
        return []

    def has_work(self) -> bool:
        """Whether the next `step` has something to do or to return."""
        return False

    def abort(self, request_id: str) -> None:
        """End a request; the next `step` returns it as "abort". Unknown ids are ignored."""

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights by Hugging Face name, tied ones once; wakes the engine.

        Unmerged adapters come last, under the names of `adapter_names`; without base weights before
        them the engine keeps its own. Tensors may have another floating dtype than the engine.
        Prefix caches are dropped. Without an engine `tensors` are not gathered. Raises RolloutError
        if requests are in flight, or names are missing or unknown; after the latter the engine can
        only be closed.
        """
        self.policy_version = version

    def reset_cache(self) -> None:
        """Drop cached prefixes, which change the last bits of later responses; only if idle."""

    def counts(self) -> dict[str, int]:
        """Return the engine's counters since the last call; empty if it counts nothing.

        `rows` submitted, and how often one was `preempted`. Summed over all `steps`: rows `running`
        and `waiting`, the cache's `blocks` and those `used`. Tokens `looked_up` among cached
        prefixes, and those `found`. With speculative decoding: `passes` of rows that
        generated tokens, the `guesses` (draft tokens) in them, and the accepted ones, `kept`.
        """
        return {}

    def sleep(self) -> None:
        """Drop weights and cache from the accelerator; idempotent; only if idle."""

    def close(self) -> None:
        """Release all resources; idempotent."""


def check_idle(engine: RolloutEngine, what: str) -> None:
    """Raise RolloutError if requests are in flight."""
    if engine.has_work():
        raise RolloutError(f"{what}: requests are in flight; finish or abort them first")


def check_request(request: Request, *, max_model_tokens: int, vocab_size: int) -> None:
    """Raise ValueError for a prompt that is empty, too long, or not in the vocabulary."""
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


@contextmanager
def generation_phase(engine: RolloutEngine) -> Iterator[Callable[[Request], None]]:
    """Open a generation phase on an idle engine; yields a function that submits a request.

    The prefix cache is empty, so the result is a function of weights and requests. After an error
    its requests are aborted.
    """
    if engine.has_work():
        raise RolloutError("generate: the engine still holds requests; it needs an idle one")
    engine.reset_cache()
    submitted: list[str] = []

    def submit(request: Request) -> None:
        engine.submit(request)
        submitted.append(request.request_id)

    try:
        yield submit
    except BaseException:
        _drain(engine, submitted)
        raise


def _drain(engine: RolloutEngine, request_ids: Sequence[str]) -> None:
    """Abort the requests of a failed phase; a broken engine must not hide the first error."""
    try:
        for request_id in request_ids:
            engine.abort(request_id)
        while engine.has_work():
            engine.step()
    except Exception as error:
        logger.warning("rollout: could not drain the engine after a failure: %s", error)
