"""Speculative decoding for vLLM on CPUs, which changes no sampled token (ADR 92).

The model reads a row's drafts in one pass, as if they had been generated. vLLM's own rejection
sampler draws other random numbers than vLLM without drafts. The one here has vLLM's sampler draw
the token of each place in order, as without drafts, and continues while the draft was that token.
So a row's generator gives a number for each token that the row keeps, and no other. Imported by
vllm_engine alone, which first sets what vLLM reads while it is imported.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from ppojob_api.v1alpha1.rollout import DraftsSpec
from ppojob_trainer.rollout.ngrams import guesses

Text = NDArray[np.int32]


class NgramDrafter:
    """vLLM's drafter: proposes n-gram drafts after each step."""

    def __init__(self, config: VllmConfig) -> None:
        self._length = config.model_config.max_model_len
        self.spec = DraftsSpec()

    def load_model(self, _: object) -> None:
        """Do nothing: there is no draft model."""

    def propose(
        self, drawn: Sequence[Sequence[int]], lengths: Text, texts: Text, **_: Any
    ) -> list[list[int]]:
        """Return drafts for each row; none if rows are many, or for a row without a new token.

        Prompt and response of a row are the first of its `texts`, (rows, tokens), as many as its
        `lengths` says. A row at full length has room only for its sampled token.
        """
        if len(drawn) > self.spec.max_rows:
            return [[] for _ in drawn]
        return [
            guesses(text[:length], self.spec, most=self._length - length - 1) if tokens else []
            for tokens, length, text in zip(drawn, lengths.tolist(), texts, strict=False)
        ]


class ExactJudge:
    """Replaces vLLM's rejection sampler: it keeps drafts equal to the tokens sampled anyway."""

    def __init__(self, engine: LLMEngine, spec: DraftsSpec) -> None:
        """Verify the drafts of an engine from now on."""
        self._counts = Counter[str]()
        runner: Any = (
            engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        )
        self._sampler = runner.sampler
        runner.rejection_sampler = self
        runner.drafter.spec = spec
        # vLLM would draft for no row once one of them is near its full length.
        runner._input_fits_in_drafter = lambda _: True

    def __call__(
        self, drafts: SpecDecodeMetadata, _: Tensor | None, logits: Tensor, ways: SamplingMetadata
    ) -> SamplerOutput:
        """Sample the tokens of each row: its correct drafts, and one token more.

        `logits`, (rows and guesses, vocabulary), has the places of each row in order.
        """
        counts = drafts.num_draft_tokens
        guessed = [row.tolist() for row in drafts.draft_token_ids.split(counts)]
        first = drafts.bonus_logits_indices - torch.tensor(counts)
        shape = len(counts), drafts.max_spec_len + 1
        tokens = torch.full(shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32)
        logprobs = torch.zeros(shape)
        rows, place = list(range(len(counts))), 0
        while rows:
            read = [guessed[row][:place] for row in rows]
            drawn = self._sampler(logits[first[rows] + place], _of_rows(ways, rows, read))
            tokens[rows, place] = drawn.sampled_token_ids[:, 0]
            logprobs[rows, place] = drawn.logprobs_tensors.logprobs[:, 0]
            agree = zip(rows, drawn.sampled_token_ids[:, 0].tolist(), strict=True)
            rows = [row for row, token in agree if guessed[row][place : place + 1] == [token]]
            self._counts["kept"] += len(rows)
            place += 1
        self._counts.update(passes=len(counts), guesses=sum(counts))
        # The ranks, the last of these, are not read.
        places = tokens.reshape(-1, 1), logprobs.reshape(-1, 1), tokens.reshape(-1)
        return SamplerOutput(tokens, LogprobsTensors(*places))

    def take_counts(self) -> dict[str, int]:
        """See `RolloutEngine.counts`."""
        told, self._counts = self._counts, Counter()
        return dict(told)


def _of_rows(
    ways: SamplingMetadata, rows: Sequence[int], read: Sequence[Sequence[int]]
) -> SamplingMetadata:
    """Return the sampling metadata of some rows after so many drafts."""
    if not any(read):
        return ways  # of all rows
    of_row = ways.generators  # greedy rows have none
    texts = ways.output_token_ids  # empty where no row is penalised
    if texts:
        texts = [[*texts[row], *own] for row, own in zip(rows, read, strict=True)]

    def of(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows]

    return replace(
        ways,
        **{name: of(getattr(ways, name)) for name in _BY_ROW},
        generators={n: of_row[row] for n, row in enumerate(rows) if row in of_row},
        output_token_ids=texts,
    )


_BY_ROW = (
    *("temperature", "top_p", "top_k", "prompt_token_ids"),
    *("frequency_penalties", "presence_penalties", "repetition_penalties"),
)
"""Per-row tensors of vLLM's sampling metadata."""


def asked_of_vllm(spec: DraftsSpec) -> dict[str, Any]:
    """Return vLLM's settings for drafts."""
    drafter = f"{__name__}.{NgramDrafter.__name__}"
    return {"method": "custom_class", "model": drafter, "num_speculative_tokens": spec.tokens}
