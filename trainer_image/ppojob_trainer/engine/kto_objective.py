"""What updates on good and bad answers minimize: KTO (Ethayarajh et al. 2024, arXiv:2402.01306).

`L = mean of λ (1 - s(± β (r - z)))`, section 4.1: r is `log(pi(y|x) / pi_ref(y|x))` of an answer,
the sign and λ are those of its label, s is the logistic function. The point of reference
`z = max(0, mean of r of mismatched answers)` has no gradient: each prompt of the batch with the
answer to another one of it, by the policy of now. With z = 0 it is the APO-zero of answers by
themselves (D'Oosterlinck et al. 2024, arXiv:2408.06266). Numbers are those of TRL's `KTOTrainer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import KtoSpec
from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class KtoObjective:
    """The loss of an update, over the first output of a `PolicyHead`.

    `of_batch` finds, before the update, what is of the whole mini-batch: the point z, and how many
    answers are good and how many bad.
    """

    spec: KtoSpec
    point: float = 0.0
    good: float = 0.0
    bad: float = 0.0

    area: ClassVar = "train"
    token_names: ClassVar = ()

    @property
    def term_names(self) -> tuple[str, ...]:
        """Metrics of an update."""
        return "train/loss", *self._terms(torch.empty(0), torch.empty(0), self.area)

    def of_batch(self, rows: Experience, engine: ForwardEngine) -> tuple[Experience, KtoObjective]:
        """The rows of a mini-batch that have a label, and their objective; all ranks call it."""
        labels = _labels(rows)
        own, mismatched = (rows.select(one.nonzero()[:, 0]) for one in (labels != 0, labels == 0))
        sums = {"good": float((labels > 0).sum()), "bad": float((labels < 0).sum()), "ratios": 0.0}
        if self.spec.loss_type == "kto":
            outputs = engine.predict(mismatched)
            sums["ratios"] = _ratios(outputs[0], mismatched).sum().item()
        told = engine.over_ranks(PassStatistics(values=sums, tokens=mismatched.num_rows))
        point = max(0.0, told.values["ratios"] / max(1.0, told.tokens))
        counts = {name: told.values[name] for name in ("good", "bad")}
        return own, replace(self, point=point, **counts)

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: all rows."""
        return torch.arange(rows.num_rows)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch of rows with a label."""
        losses, ratios = self._losses(outputs[0], rows)
        loss = losses.sum() / denominators.sequences
        terms = {"train/loss": loss.item(), **self._terms(ratios.detach(), _labels(rows), "train")}
        return LossParts(loss, terms, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """The same of held-out rows; losses as sums."""
        losses, ratios = self._losses(outputs[0], rows)
        values = self._terms(ratios, _labels(rows), "val")
        sums = {"val/loss": losses.sum().item()}
        return PassStatistics(values=values, token_sums=sums, tokens=rows.num_rows)

    def _losses(self, logprobs: Tensor, rows: Experience) -> tuple[Tensor, Tensor]:
        """Losses and log-ratios, (rows,)."""
        spec, labels, ratios = self.spec, _labels(rows), _ratios(logprobs, rows)
        weights = torch.where(labels > 0, spec.desirable_weight, spec.undesirable_weight)
        # 1 - s(x) = s(-x)
        return weights * (-labels * spec.beta * (ratios - self.point)).sigmoid(), ratios

    def _terms(self, ratios: Tensor, labels: Tensor, area: str) -> dict[str, float]:
        """The parts that some rows have in means over the mini-batch; without a mean over none."""
        rewards, found = self.spec.beta * ratios, dict[str, float]()
        if self.spec.loss_type == "kto":
            found["kl"] = self.point * len(labels) / max(1.0, self.good + self.bad)
        if self.good:
            found["rewards/chosen"] = rewards[labels > 0].sum().item() / self.good
        if self.bad:
            found["rewards/rejected"] = rewards[labels < 0].sum().item() / self.bad
        if self.good and self.bad:
            found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
        return {f"{area}/{name}": value for name, value in found.items()}


def _labels(rows: Experience) -> Tensor:
    """(rows,) 1 of a good answer, -1 of a bad one, 0 of one to another prompt."""
    assert rows.turn_rewards is not None, "labels are rewards of the answers"
    return row_sum(rows.turn_rewards, rows.mask, rows.lengths)


def _ratios(logprobs: Tensor, rows: Experience) -> Tensor:
    """(rows,) how much likelier an answer is than by the reference, as a logarithm."""
    assert rows.ref_logprobs is not None, "the reference comes before the update"
    return row_sum(logprobs - rows.ref_logprobs, rows.mask, rows.lengths)
