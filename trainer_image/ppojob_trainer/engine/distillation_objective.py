"""Distillation loss over the whole vocabulary: the divergence to the teacher itself.

`L = aggregate(D(π, π_teacher))` at the states of responses that the policy generated, by
`engine.full_kl` (Agarwal et al. 2024, arXiv:2306.13649, equation 2 on-policy only). With a limit
it is `aggregate(min(D, limit))`: a token further away has no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.distillation import DISTILLATION_LOSS
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import (
    Aggregation,
    Denominators,
    LossParts,
    TokenObjective,
    token_sums,
)
from ppojob_trainer.engine.policy_objective import SAMPLING_STATISTICS, sampling_diagnostics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class DistillationObjective(TokenObjective):
    """The distillation loss of an update, over the outputs of a `HeadWithKl`."""

    aggregation: Aggregation
    limit: float | None = None

    area: ClassVar = "actor"
    term_names: ClassVar = ("actor/loss",)
    token_names: ClassVar = (*SAMPLING_STATISTICS, DISTILLATION_LOSS)

    @classmethod
    def of(cls, spec: AlgorithmSpec, *, max_response_tokens: int) -> DistillationObjective:
        """Return the objective of a job."""
        assert spec.divergence is not None, "the whole vocabulary is compared"
        return cls(Aggregation.of(spec, max_response_tokens), spec.divergence.max_token_loss)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch."""
        logprobs, entropy, divergence = outputs
        bounded = divergence if self.limit is None else divergence.clamp(max=self.limit)
        loss = self.aggregation(bounded, rows, denominators)
        told = sampling_diagnostics(logprobs.detach(), entropy.detach(), rows)
        sums = token_sums({**told, DISTILLATION_LOSS: divergence.detach()}, rows.mask)
        terms = {"actor/loss": loss.item()}
        return LossParts(loss, terms, sums, tokens=int(rows.mask.sum()))
