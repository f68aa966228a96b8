"""The interface of rollout engines.

`submit` queues requests, and every `step` advances the running ones by about one token and returns
those that ended. `agents.driver` drives it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    """Stop strings, for ends that are no single token (``</search>``).

    The token that completes one is the last, and stays whole. There is at least one text, none
    empty; `decode` gives the text of token ids. `before` are tokens of the same turn that an
    earlier request generated.
    """

    texts: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]
    before: tuple[int, ...] = ()

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether the last of `tokens` completes one of the texts.

        Only as many tokens are decoded as may hold one: a token has a byte at least, and one more
        is looked at for a character that begins before the text.
        """
        window = max(len(text.encode()) for text in self.texts) + 4
        held = tokens if len(tokens) >= window else (*self.before, *tokens)
        tail = self.decode(held[-window:])
        return any(text in tail for text in self.texts)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one response.

    The order is fixed, vLLM's: mask of the grammar, repetition penalty, division by the
    temperature, then min-p, top-k and top-p; the rest is renormalised, and its log-probabilities
    are the ones reported.
    """

    temperature: float  # 0 takes the most likely token (reported as at temperature 1)
    top_p: float  # Keep the smallest set of tokens whose probability reaches this; 1 keeps all
    top_k: int  # Keep this many of the most likely tokens; -1 keeps all
    max_tokens: int  # The response ends after this many tokens ("length")
    # The response ends with the first of these ("stop"); a model's own end-of-sequence ids
    # count only if they are listed here
    stop_token_ids: tuple[int, ...] = ()
    # The response ends with the first of these texts ("stop"); None for no text
    stop_texts: StopTexts | None = None
    # Keep tokens of this share of the most likely one's probability; 0 keeps all
    min_p: float = 0.0
    # Logits of tokens in prompt and response are divided by this where positive, else multiplied
    repetition_penalty: float = 1.0
    # Keep the tokens with which the response has this form; None keeps all
    grammar: Grammar | None = None

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether the last of a response's tokens completes a stop string."""
        return self.stop_texts is not None and self.stop_texts.ends(tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """One sample of one prompt, which has a token at least.

    The id is unique among the requests that an engine holds; the seed is that of the sample's own
    random stream (`sampling.sample_seed`).
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    pictures: bytes = b""  # pictures of the prompt, packed by `data.pictures.packed`
    later: tuple[int, ...] = ()  # see `MediaForm.places`


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished response.

    Log-probabilities are those of the distribution that each token was sampled from, see
    `SamplingParams`.
    """

    request_id: str
    tokens: tuple[int, ...]  # including the token that ended it
    logprobs: tuple[float, ...]
    finish_reason: FinishReason  # "abort" keeps what was generated until then, possibly nothing
    policy_version: int  # of the weights that generated it
    # (prompt and all tokens but the last, layers, k) numbers of the experts that each was routed
    # to, one byte each if the model has at most 256, else two; empty if not recorded
    experts: bytes = b""


def nan_error(request_id: str, policy_version: int) -> RolloutError:
    """Return the error of a model that gives NaN for a request's probabilities."""
    return RolloutError(
        f"request {request_id!r}: got NaN for the probability of a token: the weights of version "
        f"{policy_version} hold numbers that are not finite, or overflow the engine's type"
    )


def lost_requests(request_ids: Sequence[str]) -> RolloutError:
    """Return the error of an engine that has no more work while requests have no response."""
    return RolloutError(
        f"generate: the engine lost {len(request_ids)} requests, first {request_ids[0]!r}"
    )


class RolloutEngine:
    """A rollout engine; this base class generates nothing, as in ranks without an engine.

    Methods are called from one thread.
    """

    policy_version = 0
    """Version of the last `load_weights`."""

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: the id is in use, the prompt is empty, or prompt and response do not fit the
                engine's length.
        """
        raise RolloutError(f"request {request.request_id!r}: this job generates nothing")

    def step(self) -> list[Finished]:
        """Advance running requests by about one token; return finished ones as submitted.

        Raises:
            RolloutError: the model gives NaN for a request's probabilities.
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
        Prefix caches are dropped. Without an engine `tensors` are not gathered.

        Raises:
            RolloutError: requests are in flight, or names are missing or unknown. After the latter
                the weights are undefined, and the engine can only be closed.
        """
        self.policy_version = version

    def reset_cache(self) -> None:
        """Drop cached prefixes, which would change the last bits of later responses.

        Raises:
            RolloutError: requests are in flight.
        """

    def counts(self) -> dict[str, int]:
        """Return the engine's counters since the last call; empty if it counts nothing.

        `rows` submitted, and how often one was `preempted`. Summed over all `steps`: rows `running`
        and `waiting`, the cache's `blocks` and those `used`. Tokens `looked_up` among cached
        prefixes, and those `found`. With speculative decoding: `passes` of rows that
        generated tokens, the `guesses` (draft tokens) in them, and the accepted ones, `kept`.
        """
        return {}

    def sleep(self) -> None:
        """Drop weights and cache to release accelerator memory to the trainer; idempotent.

        Raises:
            RolloutError: requests are in flight.
        """

    def close(self) -> None:
        """Release all resources; idempotent."""


def check_idle(engine: RolloutEngine, what: str) -> None:
    """Refuse an action that would change responses in flight.

    Raises:
        RolloutError: If requests are in flight.
    """
    if engine.has_work():
        raise RolloutError(f"{what}: requests are in flight; finish or abort them first")


def check_request(request: Request, *, max_model_tokens: int, vocab_size: int) -> None:
    """Refuse a request that the engine cannot serve in full.

    Raises:
        ValueError: The prompt is empty, has a token outside the vocabulary, or is too long.
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


@contextmanager
def generation_phase(engine: RolloutEngine) -> Iterator[Callable[[Request], None]]:
    """Open a generation phase; yields a function that submits a request.

    It starts on an idle engine with an empty prefix cache, so that its result is a function of
    weights and requests alone. After an error its requests are aborted and the engine is idle.

    Raises:
        RolloutError: If the engine is busy.
    """
    if engine.has_work():
        raise RolloutError("generate: the engine still holds requests; it needs an idle one")
    engine.reset_cache()
    asked: list[str] = []

    def submit(request: Request) -> None:
        engine.submit(request)
        asked.append(request.request_id)

    try:
        yield submit
    except BaseException:
        _drain(engine, asked)
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
