"""The policy's loss under a rollout correction: numbers of verl, and what jobs without one have."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.policy_loss import LOSSES
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.algorithms.rollout_correction import Correction, correct
from ppojob_trainer.engine.objective import Aggregation, Denominators
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.rows.experience import Experience

FOLDER = Path(__file__).parents[1] / "algorithms"
BATCHES = json.loads((FOLDER / "verl_numbers.json").read_text(encoding="utf-8"))["batches"]
TABLE = json.loads((FOLDER / "verl_rollout_correction.json").read_text(encoding="utf-8"))
DTYPES = (torch.float32, torch.float64)


def stored(batch: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Experience]:
    """Log-probabilities of the policy in the update, and the rows."""

    def column(name: str) -> Tensor:
        return torch.tensor([v / 64 for row in batch[name] for v in row], dtype=dtype)

    mask = torch.tensor([bool(trained) for row in batch["mask"] for trained in row])
    rows = Experience(
        prompts=[torch.tensor([1])] * (max(batch["groups"]) + 1),
        row_groups=torch.tensor(batch["groups"]),
        response_tokens=torch.zeros(len(mask), dtype=torch.int64),
        lengths=torch.tensor([len(row) for row in batch["mask"]]),
        mask=mask,
        rollout_logprobs=column("rollout_logprobs"),
        old_logprobs=column("old_logprobs"),
        advantages=column("advantages"),
    )
    return column("logprobs").requires_grad_(), rows


def name_of(case: dict[str, Any]) -> str:
    correction = case["correction"]
    modes = [mode for mode, _, _ in correction["rejection"]]
    floor = "" if correction["weight_floor"] is None else "-floor"
    return "-".join([case["type"], correction["weights"] + floor, *modes, case["aggregation"]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", TABLE["losses"], ids=name_of)
def test_equal_to_verl(case: dict[str, Any], dtype: torch.dtype):
    modes = [
        dict(zip(("mode", "low", "high"), m, strict=True)) for m in case["correction"]["rejection"]
    ]
    correction = Correction.of(**{**case["correction"], "rejection": modes})
    is_bypass = case["type"] == "bypass"
    for batch, theirs in zip(BATCHES, case["results"], strict=False):
        logprobs, rows = stored(batch, dtype)
        # verl's denominators are those of before the rejection.
        denominators = Denominators(float(rows.mask.sum()), float(rows.num_rows))
        if not is_bypass:
            columns = (rows.old_logprobs, rows.rollout_logprobs, rows.mask, rows.lengths)
            corrected = correct(correction, *columns)
            rows.mask, rows.loss_weights = corrected.mask, corrected.weights
        objective = PolicyObjective(
            POLICY_LOSSES[case["type"]],
            LOSSES[case["type"]],
            case["settings"],
            Aggregation(case["aggregation"]),
            correction if is_bypass else None,
        )
        parts = objective((logprobs, torch.zeros_like(logprobs)), rows, denominators)
        (gradient,) = torch.autograd.grad(parts.loss, logprobs)
        close(parts.loss.detach().reshape(1), [theirs["loss"]])
        close(gradient, theirs["gradient"])
        assert set(objective.token_names) == parts.token_sums.keys()


def close(ours: Tensor, theirs: list[float]) -> None:
    for one, other in zip(ours.tolist(), theirs, strict=True):
        assert math.isfinite(one)
        assert abs(one - other) <= 1e-6 * max(1.0, abs(other)), (one, other)


def bypassed(
    batch: dict[str, Any],
    *,
    has_old: bool = True,
    form: str = "clip",
    positive: float | None = None,
    **correction: Any,
):
    """Log-probabilities, rows, loss and gradient of a bypass; `positive` weighs right responses."""
    spec = AlgorithmSpec.model_validate(
        {
            "type": "grpo",
            "promptsPerStep": 1,
            "samplesPerPrompt": 2,
            "policyLoss": {"type": "bypass", "bypass": {"form": form}},
            "rolloutCorrection": correction,
            "positiveExamples": None if positive is None else {"coefficient": positive},
        }
    )
    logprobs, rows = stored(batch, torch.float64)
    rows.positives = torch.ones_like(rows.mask)
    if not has_old:
        rows.old_logprobs = None
    outputs = (logprobs, torch.zeros_like(logprobs))
    parts = PolicyObjective.of(spec)(outputs, rows, Denominators.of(rows))
    return logprobs.detach(), rows, parts, torch.autograd.grad(parts.loss, logprobs)[0]


def test_rejected_tokens_have_no_gradient_and_count_below_it():
    for batch in BATCHES:
        logprobs, rows, parts, gradient = bypassed(
            batch, rejection=[{"mode": "token_k2", "high": 0.3}]
        )
        far = 0.5 * (logprobs - rows.rollout_logprobs).square() > 0.3
        assert (far & rows.mask).any()
        assert not gradient[far].any()
        rejected = parts.token_sums["rollout_corr/rollout_rs_token_k2_masked_fraction"]
        assert rejected == float((far & rows.mask).sum())
        assert parts.tokens == int(rows.mask.sum())


def test_right_responses_are_not_learnt_where_they_are_rejected():
    for batch in BATCHES:
        rejection = {"rejection": [{"mode": "token_k2", "high": 0.3}]}
        plain, with_positives = (
            bypassed(batch, positive=coefficient, **rejection) for coefficient in (None, 0.5)
        )
        logprobs, rows, parts, gradient = with_positives
        near = rows.mask & (0.5 * (logprobs - rows.rollout_logprobs).square() <= 0.3)
        assert near.sum() < rows.mask.sum()
        expected = -0.5 * near.to(gradient) / rows.mask.sum()
        torch.testing.assert_close(gradient - plain[3], expected)
        told = -logprobs[near].sum() / rows.mask.sum()
        assert parts.terms["actor/positive_loss"] == pytest.approx(told.item())


def test_bypass_needs_no_old_policy():
    for batch in BATCHES:
        (_, _, with_old, one), (_, _, without, other) = (
            bypassed(batch, has_old=has_old, form="reinforce", weights="sequence")
            for has_old in (True, False)
        )
        assert with_old.loss == without.loss
        assert torch.equal(one, other)
