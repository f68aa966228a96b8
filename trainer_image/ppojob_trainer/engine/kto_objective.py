"""KTO: the loss of answers labelled good or bad (Ethayarajh et al. 2024, arXiv:2402.01306).

`L = mean of λ (1 - s(± β (r - z)))`, section 4.1: r is `log(pi(y|x) / pi_ref(y|x))`, sign and λ
depend on the label, s is the logistic function. The reference point `z = max(0, mean of r of
mismatched answers)`, without gradient, pairs prompts with answers to others under the current
policy. With z = 0 it is APO-zero of single answers (D'Oosterlinck et al. 2024, arXiv:2408.06266).
BCO (Jung et al. 2024, arXiv:2404.04656) is a classifier of the same rewards, `-log s(± (β r - δ))`,
with their running mean δ. Metrics are those of TRL's `KTOTrainer` and `BCOTrainer`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ppojob_api.v1alpha1.preferences import KtoSpec
from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

REWARD_MEAN: Final = "reward_mean"
"""Name among the tensors of an engine's state."""


@dataclass(slots=True)
class RewardMean:
    """Mean reward of the answers of all previous updates: δ of BCO."""

    value: float = 0.0
    answers: float = 0.0

    def update(self, measured: PassStatistics) -> None:
        count = sum(measured.counts[name] for name in KtoObjective.token_names)
        total = sum(measured.token_sums[name] for name in KtoObjective.token_names)
        self.answers += count
        self.value += (total - count * self.value) / self.answers


@dataclass(frozen=True, slots=True)
class KtoObjective:
    """The KTO or BCO loss of an update, over the first output of a `PolicyHead`.

    `of_batch` computes the reference point z of a mini-batch before its update; BCO's is δ / β.
    """

    spec: KtoSpec
    point: float = 0.0

    area: ClassVar = "train"
    token_names: ClassVar = ("train/rewards/chosen", "train/rewards/rejected")

    @property
    def term_names(self) -> tuple[str, ...]:
        """The metrics that are divided by the rows of the mini-batch."""
        return ("train/loss", "train/delta" if self.spec.loss_type == "bco" else "train/kl")

    def compared_with(self, mean: RewardMean) -> Self:
        return replace(self, point=mean.value / self.spec.beta)

    def of_batch(self, rows: Experience, engine: ForwardEngine) -> tuple[Experience, Self]:
        """Return a mini-batch's labelled rows and their objective; a collective of all ranks."""
        labels = _labels(rows)
        own, mismatched = (rows.select(one.nonzero()[:, 0]) for one in (labels != 0, labels == 0))
        if self.spec.loss_type != "kto":
            return own, self
        (logprobs,) = engine.predict(mismatched)
        total = _ratios(logprobs, mismatched).sum().item()
        measured = engine.over_ranks(PassStatistics({"kl": total}, tokens=mismatched.num_rows))
        return own, replace(self, point=max(0.0, measured.values["kl"] / measured.tokens))

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        return torch.arange(rows.num_rows)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
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
        logits = -labels * spec.beta * (ratios - self.point)
        sums, counts = {"kl": self.point * rows.num_rows}, {}
        if spec.loss_type == "bco":
            losses = -weights * logsigmoid(-logits)
            sums = {"delta": spec.beta * self.point * rows.num_rows}
        else:
            losses = weights * logits.sigmoid()
        sums["loss"] = losses.detach().sum().item()
        for name, are_such in (("chosen", labels > 0), ("rejected", labels < 0)):
            rewards = spec.beta * ratios.detach()[are_such]
            sums[f"rewards/{name}"] = rewards.sum().item()
            counts[f"{area}/rewards/{name}"] = float(len(rewards))
        named = {f"{area}/{name}": total for name, total in sums.items()}
        return losses, PassStatistics(token_sums=named, tokens=rows.num_rows, counts=counts)


def _labels(rows: Experience) -> Tensor:
    """Return (rows,): 1 for a good answer, -1 for a bad one, 0 for a mismatched one."""
    assert rows.turn_rewards is not None, "labels are turn rewards"
    return row_sum(rows.turn_rewards, rows.mask, rows.lengths)


def _ratios(logprobs: Tensor, rows: Experience) -> Tensor:
    """Return (rows,): the log-ratio of each answer to the reference."""
    assert rows.ref_logprobs is not None, "the reference comes before the update"
    return row_sum(logprobs - rows.ref_logprobs, rows.mask, rows.lengths)
