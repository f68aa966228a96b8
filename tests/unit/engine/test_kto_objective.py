"""KTO against the definition: in float64, answer by answer, by transformers alone."""

from collections.abc import Callable

import pytest
import tiny_models
import torch
from padded_reference import assert_gradients, padded_logprobs

from ppojob_api.v1alpha1.preferences import KtoSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.kto_objective import KtoObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.demonstrations import Demonstration
from ppojob_trainer.workers.row_store import demonstration_rows

MakeModel = Callable[..., tiny_models.PreTrainedModel]
ANSWERS = [
    ([5, 6, 7], [([8, 9], True)], True),
    ([5], [([20], True), ([21, 22], False), ([23, 24], True)], False),
    ([30, 31, 32, 33], [([36, 37, 39, 40], True)], True),
    ([12, 13], [([14, 15, 16], True)], True),
]
"""Prompts, their answers by who wrote them, and whether these are good."""
SPECS: dict[str, dict[str, object]] = {
    "kto": {},
    "a KL below 0": {},
    "weights": {"beta": 0.5, "desirableWeight": 0.7, "undesirableWeight": 1.3},
    "apo_zero_unpaired": {"lossType": "apo_zero_unpaired", "beta": 0.4},
    "bco": {"lossType": "bco", "beta": 0.4, "desirableWeight": 0.7},
}
MEAN_SO_FAR = 0.13
"""Of rewards, in updates before the one that is compared."""


def experience(answers: list[tuple], *, is_mixed: bool = True) -> Experience:
    """Each prompt with its answer and, mixed, with that of the prompt before it."""
    parts = [
        tuple(AnswerPart(tuple(tokens), own) for tokens, own in answer) for _, answer, _ in answers
    ]
    given = [
        Demonstration(
            n, prompt, (parts[n], *([parts[n - 1]] if is_mixed else [])), 1.0 if is_good else -1.0
        )
        for n, (prompt, _, is_good) in enumerate(answers)
    ]
    return demonstration_rows(0, given, has_rewards=True).experience


def by_row(column: torch.Tensor, rows: Experience) -> torch.Tensor:
    parts = (column * rows.mask).split(rows.lengths.tolist())
    return torch.stack([part.sum() for part in parts])


def literal_kto(
    ratios: torch.Tensor, mismatched: torch.Tensor, labels: list[bool], spec: KtoSpec
) -> tuple[torch.Tensor, float]:
    """As section 4.1 of the paper has it, in the words of its value function, and z_0.

    BCO is the cross-entropy of a classifier whose logit is the reward less its mean so far.
    """
    if spec.loss_type == "bco":
        logits = spec.beta * ratios - MEAN_SO_FAR
        weights = [spec.desirable_weight if one else spec.undesirable_weight for one in labels]
        good = torch.tensor(labels, dtype=logits.dtype)
        loss = torch.nn.BCEWithLogitsLoss(torch.tensor(weights))
        return loss(logits, good), MEAN_SO_FAR
    z_0 = max(0.0, mismatched.mean().item()) if spec.loss_type == "kto" else 0.0
    losses = []
    for ratio, is_good in zip(ratios, labels, strict=True):
        weight = spec.desirable_weight if is_good else spec.undesirable_weight
        gain = ratio - z_0 if is_good else z_0 - ratio
        losses.append(weight - weight / (1 + torch.exp(-spec.beta * gain)))
    return torch.stack(losses).mean(), z_0


def engine(
    model: tiny_models.PreTrainedModel, *, tracks_rewards: bool = False, **training: object
) -> TrainEngine:
    spec = TrainingSpec.model_validate({"autocast": "none", **training})
    head = PolicyHead(LogprobSettings(1.0, spec.logprob_chunk_tokens))
    optimizer = OptimizerSpec(gradient_clip=0.0)
    return TrainEngine(model, head, spec, optimizer, 1, tracks_rewards=tracks_rewards)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("training", [{"micro_batch_tokens": 1}, {"share_prompts": False}, {}])
def test_kto_equals_the_literal_reference(make_model: MakeModel, name: str, training):
    spec = KtoSpec.model_validate(SPECS[name])
    rows = experience(ANSWERS, is_mixed=spec.loss_type == "kto")
    ours, theirs = (make_model(dtype=torch.float64) for _ in range(2))
    own, others = (torch.arange(first, rows.num_rows, 2) for first in (0, 1))
    if spec.loss_type != "kto":
        own, others = torch.arange(rows.num_rows), torch.arange(0)
    with torch.no_grad():
        rows.ref_logprobs = padded_logprobs(make_model(seed=1), rows)[0] + (
            1 if name == "a KL below 0" else -1
        )
    is_bco = spec.loss_type == "bco"
    predicting = engine(make_model(), **training)
    learner = engine(ours, tracks_rewards=is_bco, **training)
    mine, objective = KtoObjective(spec).of_batch(rows, predicting)
    if learner.reward_mean is not None:
        learner.reward_mean.value, learner.reward_mean.answers = MEAN_SO_FAR, 12.0
        objective = objective.compared_with(learner.reward_mean)
    held_out = objective.measured(predicting.predict(mine), mine)
    measured = learner.update(mine, objective)

    ratios = by_row(padded_logprobs(theirs, rows)[0] - rows.ref_logprobs, rows)
    labels = [label for _, _, label in ANSWERS]
    loss, z_0 = literal_kto(ratios[own], ratios[others].detach(), labels, spec)
    good = torch.tensor(labels)
    rewards = spec.beta * ratios[own].detach()
    told = {"loss": loss, "delta" if is_bco else "kl": torch.tensor(z_0)}
    told |= {"rewards/chosen": rewards[good].mean(), "rewards/rejected": rewards[~good].mean()}
    assert (z_0 > 0) == (name in {"kto", "weights", "bco"})
    if learner.reward_mean is not None:
        whole = (12 * MEAN_SO_FAR + rewards.sum().item()) / 16
        assert learner.state_tensors()["reward_mean"].tolist() == pytest.approx([whole, 16])
    # Not to the last digit: rotary embeddings are float32 in models of float64, too.
    figures = step_statistics([measured]) | step_statistics([held_out])
    for figure, value in told.items():
        assert figures[f"train/{figure}"] == pytest.approx(value.item(), rel=1e-5)
        assert figures[f"val/{figure}"] == pytest.approx(value.item(), rel=1e-5)
    assert_gradients(ours, theirs, loss, 1e-5)


OF_TRL = {"kto": 0.457896225, "apo_zero_unpaired": 0.456772367, "bco": 0.607191725}
POINTS = {"kto": 0.4, "bco": -1.3}
"""What the trainers of TRL (f2cd57710) give for log ratios of -0.7, good, and -1.9, bad.

With a beta of 0.3, and 0.4 as the mean of mismatched ones; of BCO in its first update.
"""


@pytest.mark.parametrize("name", OF_TRL)
def test_numbers_are_those_of_trl(name: str) -> None:
    spec = KtoSpec.model_validate({"lossType": name, "beta": 0.3})
    answers = [([5], [([6], True)], True), ([7], [([8], True)], False)]
    rows = experience(answers, is_mixed=False)
    rows.ref_logprobs = torch.zeros(2)
    objective = KtoObjective(spec, point=POINTS.get(name, 0.0))
    measured = objective.measured((torch.tensor([-0.7, -1.9]),), rows)
    assert measured.token_sums["val/loss"] / 2 == pytest.approx(OF_TRL[name], rel=1e-6)
