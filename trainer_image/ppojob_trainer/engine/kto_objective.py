"""What updates on good and bad answers minimize: KTO (Ethayarajh et al. 2024, arXiv:2402.01306).

`L = mean of λ (1 - s(± β (r - z)))`, section 4.1: r is `log(pi(y|x) / pi_ref(y|x))` of an answer,
the sign and λ are those of its label, s is the logistic function. The point of reference
`z = max(0, mean of r of mismatched answers)` has no gradient: of prompts with the answers to
others, by the policy of now. With z = 0 it is APO-zero of single answers (D'Oosterlinck et al.
2024, arXiv:2408.06266). Numbers are those of TRL's `KTOTrainer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ppojob_api.v1alpha1.preferences import KtoSpec
from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class KtoObjective:
    """The loss of an update, over the first output of a `PolicyHead`.

    `of_batch` finds the point z of a mini-batch, before its update.
    """

    spec: KtoSpec
    point: float = 0.0

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss", "train/kl")
    token_names: ClassVar = ("train/rewards/chosen", "train/rewards/rejected")

    def of_batch(self, rows: Experience, engine: ForwardEngine) -> tuple[Experience, KtoObjective]:
        """The rows of a mini-batch that have a label, and their objective; all ranks call it."""
        labels = _labels(rows)
        own, mismatched = (rows.select(one.nonzero()[:, 0]) for one in (labels != 0, labels == 0))
        if self.spec.loss_type != "kto":
            return own, self
        (logprobs,) = engine.predict(mismatched)
        total = _ratios(logprobs, mismatched).sum().item()
        told = engine.over_ranks(PassStatistics({"kl": total}, tokens=mismatched.num_rows))
        return own, replace(self, point=max(0.0, told.values["kl"] / told.tokens))

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: all rows."""
        return torch.arange(rows.num_rows)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch of rows with a label."""
        losses, measured = self._losses(outputs[0], rows, self.area)
        sums, count = measured.token_sums, denominators.sequences
        terms = {name: sums[name] / count for name in self.term_names}
        return LossParts(losses.sum() / count, terms, sums, counts=measured.counts)

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """The same of held-out rows: sums."""
        return self._losses(outputs[0], rows, "val")[1]

    def _losses(
        self, logprobs: Tensor, rows: Experience, area: str
    ) -> tuple[Tensor, PassStatistics]:
        """Losses, (rows,), and what is told of them."""
        spec, labels, ratios = self.spec, _labels(rows), _ratios(logprobs, rows)
        weights = torch.where(labels > 0, spec.desirable_weight, spec.undesirable_weight)
        # 1 - s(x) = s(-x)
        losses = weights * (-labels * spec.beta * (ratios - self.point)).sigmoid()
        sums = {"loss": losses.detach().sum().item(), "kl": self.point * rows.num_rows}
        counts = {}
        for name, are_such in (("chosen", labels > 0), ("rejected", labels < 0)):
            rewards = spec.beta * ratios.detach()[are_such]
            sums[f"rewards/{name}"] = rewards.sum().item()
            counts[f"{area}/rewards/{name}"] = float(len(rewards))
        told = {f"{area}/{name}": total for name, total in sums.items()}
        return losses, PassStatistics(token_sums=told, tokens=rows.num_rows, counts=counts)


def _labels(rows: Experience) -> Tensor:
    """(rows,) 1 of a good answer, -1 of a bad one, 0 of one to another prompt."""
    assert rows.turn_rewards is not None, "labels are rewards of the answers"
    return row_sum(rows.turn_rewards, rows.mask, rows.lengths)


def _ratios(logprobs: Tensor, rows: Experience) -> Tensor:
    """(rows,) how much likelier an answer is than by the reference, as a logarithm."""
    assert rows.ref_logprobs is not None, "the reference comes before the update"
    return row_sum(logprobs - rows.ref_logprobs, rows.mask, rows.lengths)
