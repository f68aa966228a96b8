"""KTO: the loss of answers labelled good or bad (Ethayarajh et al. 2024, arXiv:2402.01306).

`L = mean of λ (1 - s(± β (r - z)))`, section 4.1: r is `log(pi(y|x) / pi_ref(y|x))` of an answer,
the sign and λ depend on its label, s is the logistic function. The reference point
`z = max(0, mean of r of mismatched answers)` has no gradient; it pairs prompts with the answers to
others, under the current policy. With z = 0 it is APO-zero of single answers (D'Oosterlinck et al.
2024, arXiv:2408.06266). Metrics are those of TRL's `KTOTrainer`.
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
    """The KTO loss of an update, over the first output of a `PolicyHead`.

    `of_batch` computes the reference point z of a mini-batch before its update.
    """

    spec: KtoSpec
    point: float = 0.0

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss", "train/kl")
    token_names: ClassVar = ("train/rewards/chosen", "train/rewards/rejected")

    def of_batch(self, rows: Experience, engine: ForwardEngine) -> tuple[Experience, KtoObjective]:
        """Return a mini-batch's labelled rows and their objective; a collective of all ranks."""
        labels = _labels(rows)
        own, mismatched = (rows.select(one.nonzero()[:, 0]) for one in (labels != 0, labels == 0))
        if self.spec.loss_type != "kto":
            return own, self
        (logprobs,) = engine.predict(mismatched)
        total = _ratios(logprobs, mismatched).sum().item()
        told = engine.over_ranks(PassStatistics({"kl": total}, tokens=mismatched.num_rows))
        return own, replace(self, point=max(0.0, told.values["kl"] / told.tokens))

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """Return (n,) int64: all rows."""
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
        """Return the statistics of held-out rows, as sums."""
        return self._losses(outputs[0], rows, "val")[1]

    def _losses(
        self, logprobs: Tensor, rows: Experience, area: str
    ) -> tuple[Tensor, PassStatistics]:
        """Return losses, (rows,), and the statistics to report."""
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
    """Return (rows,): 1 for a good answer, -1 for a bad one, 0 for a mismatched one."""
    assert rows.turn_rewards is not None, "labels are rewards of the answers"
    return row_sum(rows.turn_rewards, rows.mask, rows.lengths)


def _ratios(logprobs: Tensor, rows: Experience) -> Tensor:
    """Return (rows,): the log-ratio of each answer to the reference."""
    assert rows.ref_logprobs is not None, "the reference comes before the update"
    return row_sum(logprobs - rows.ref_logprobs, rows.mask, rows.lengths)
