"""Speculative decoding for vLLM on CPUs, which changes no sampled token (ADR 92).

The model reads a row's drafts in one pass. vLLM's own rejection sampler uses other random numbers
than vLLM without drafts. This one calls vLLM's sampler for each position in order, as without
drafts, and continues while the draft equals the sampled token. So a row's generator is used once
per token that the row keeps.
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
from ppojob_trainer.rollout.ngrams import ngram_drafts

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
        """Return drafts for each row; none with many rows, or for a row without a new token.

        The first `lengths` tokens of `texts`, (rows, tokens), are prompt and response of each row.
        """
        if len(drawn) > self.spec.max_rows:
            return [[] for _ in drawn]
        return [
            ngram_drafts(text[:length], self.spec, most=self._length - length - 1) if tokens else []
            for tokens, length, text in zip(drawn, lengths.tolist(), texts, strict=False)
        ]


class ExactRejectionSampler:
    """Replaces vLLM's rejection sampler: accepts drafts that equal the tokens sampled anyway."""

    def __init__(self, engine: LLMEngine, spec: DraftsSpec) -> None:
        self._counts = Counter[str]()
        runner: Any = (
            engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        )
        self._sampler = runner.sampler
        runner.rejection_sampler = self
        runner.drafter.spec = spec
        # Otherwise vLLM stops drafting once any row is near its full length.
        runner._input_fits_in_drafter = lambda _: True

    def __call__(
        self,
        drafts: SpecDecodeMetadata,
        _: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """Sample the tokens of each row: its accepted drafts, and one more.

        `logits`, (rows and drafts, vocabulary), has the positions of each row in order.
        """
        counts = drafts.num_draft_tokens
        drafted = [row.tolist() for row in drafts.draft_token_ids.split(counts)]
        first = drafts.bonus_logits_indices - torch.tensor(counts)
        shape = len(counts), drafts.max_spec_len + 1
        tokens = torch.full(shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32)
        logprobs = torch.zeros(shape)
        rows, place = list(range(len(counts))), 0
        while rows:
            read = [drafted[row][:place] for row in rows]
            drawn = self._sampler(logits[first[rows] + place], _of_rows(metadata, rows, read))
            tokens[rows, place] = drawn.sampled_token_ids[:, 0]
            logprobs[rows, place] = drawn.logprobs_tensors.logprobs[:, 0]
            agree = zip(rows, drawn.sampled_token_ids[:, 0].tolist(), strict=True)
            rows = [row for row, token in agree if drafted[row][place : place + 1] == [token]]
            self._counts["kept"] += len(rows)
            place += 1
        self._counts.update(passes=len(counts), guesses=sum(counts))
        # vLLM does not read the ranks, the last of these.
        places = tokens.reshape(-1, 1), logprobs.reshape(-1, 1), tokens.reshape(-1)
        return SamplerOutput(tokens, LogprobsTensors(*places))

    def take_counts(self) -> dict[str, int]:
        counts, self._counts = self._counts, Counter()
        return dict(counts)


def _of_rows(
    metadata: SamplingMetadata, rows: Sequence[int], read: Sequence[Sequence[int]]
) -> SamplingMetadata:
    """Return the sampling metadata of some rows after their accepted drafts."""
    if not any(read):
        return metadata  # of all rows
    of_row = metadata.generators  # greedy rows have none
    texts = metadata.output_token_ids  # empty where no row is penalised
    if texts:
        texts = [[*texts[row], *own] for row, own in zip(rows, read, strict=True)]

    def of(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows]

    return replace(
        metadata,
        **{name: of(getattr(metadata, name)) for name in _BY_ROW},
        generators={n: of_row[row] for n, row in enumerate(rows) if row in of_row},
        output_token_ids=texts,
    )


_BY_ROW = (
    *("temperature", "top_p", "top_k", "prompt_token_ids"),
    *("frequency_penalties", "presence_penalties", "repetition_penalties"),
)
"""Per-row tensors of vLLM's sampling metadata."""


def speculative_config(spec: DraftsSpec) -> dict[str, Any]:
    """Return vLLM's settings for drafts."""
    drafter = f"{__name__}.{NgramDrafter.__name__}"
    return {"method": "custom_class", "model": drafter, "num_speculative_tokens": spec.tokens}
