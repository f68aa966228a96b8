import math
from dataclasses import replace

import pytest
import torch
from literal_loss_comparison import CASES, compare_loss
from ragged_batches import DTYPES, fixed_batches

from ppojob_api.v1alpha1.policy_loss import LOSSES, DroSpec, PolicyLossSpec
from ppojob_trainer.algorithms.policy_losses import table
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES

NAMES = tuple(dict.fromkeys(case.name for case in CASES))


def spec(name: str) -> PolicyLossSpec:
    return PolicyLossSpec(type=name, dro=DroSpec(beta=0.5) if name == "dro" else None)


def inputs(
    log_ratios: list[float],
    advantages: list[float],
    lengths: list[int] | None = None,
    mask: list[bool] | None = None,
    old: float = -1.0,
) -> LossInputs:
    """Tokens of the given ratios to the old policy, whose log-probabilities are all `old`."""
    columns = torch.full((len(log_ratios),), old, dtype=torch.float64)
    return LossInputs(
        logprobs=(columns + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        old_logprobs=columns,
        rollout_logprobs=columns,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=torch.tensor(mask or [True] * len(log_ratios)),
        lengths=torch.tensor(lengths or [len(log_ratios)]),
        groups=torch.zeros(len(lengths or [0]), dtype=torch.int64),
        ref_logprobs=columns,
        log_z=torch.zeros_like(columns),
    )


def loss_of(name: str, given: LossInputs, **options: object) -> LossOutput:
    return POLICY_LOSSES[name].compute(given, **(spec(name).settings() | options))


def test_every_loss_has_a_literal_form():
    assert set(NAMES) == POLICY_LOSSES.keys() == LOSSES.keys() - {"custom"}


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_the_literal_forms_far_from_the_old_policy(name: str):
    for batch in fixed_batches():
        far = {
            column: [[8.0 * value for value in row] for row in getattr(batch, column)]
            for column in ("old_logprobs", "rollout_logprobs")
        }
        for dtype in DTYPES:
            compare_loss(table, replace(batch, **far), dtype, name)


def test_clip_cuts_off_log_ratios_at_20():
    given = inputs([90.0, -90.0], [-1.0, 1.0], old=-100.0)
    output = loss_of("clip", given, dual_clip=0.0)
    # -A e^20 = 485165195.41 and -A e^-20 = -2.0611536e-9; beyond the limit there is no gradient
    assert output.loss.tolist() == pytest.approx([485165195.41, -2.0611536e-9], rel=1e-6)
    assert output.metrics["actor/ppo_kl"].tolist() == [-20.0, 20.0]
    (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_large_ratios_stay_finite(name: str):
    given = inputs([90.0, -90.0, 90.0, -90.0], [1.0, 1.0, -1.0, -1.0], [1] * 4, old=-100.0)
    output = loss_of(name, given)
    (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
    assert output.loss.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_that_is_trained_is_seen(name: str):
    given = inputs([math.nan, 0.1], [1.0, 1.0])
    assert loss_of(name, given).loss.isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_keeps_what_its_row_in_the_table_says(name: str):
    given = inputs([0.5, -1.0, 0.0], [0.0, 0.0, 0.0], [2, 1])
    output = loss_of(name, given)
    assert tuple(output.metrics) == POLICY_LOSSES[name].metrics
    assert not any(values.requires_grad for values in output.metrics.values())
    if POLICY_LOSSES[name].vanishes_without_advantage:
        (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
        assert gradient.tolist() == [0.0] * 3


def test_clip_cov_draws_its_share():
    # Covariances: A and log-probability fall together from token to token, so all are positive.
    count = 1000
    steps = [2.0 - 4.0 * i / count for i in range(count)]
    bounds = {"covariance_low": 0.0, "covariance_high": 10.0, "clip_low": 9.0, "clip_high": 9.0}
    given = inputs(steps, [step - 0.002 for step in steps], old=-3.0)
    for share, drawn in ((0.0002, 1), (0.05, 50), (1.0, count)):
        torch.manual_seed(3)
        first = loss_of("clip_cov", given, share=share, **bounds)
        torch.manual_seed(3)
        again = loss_of("clip_cov", given, share=share, **bounds)
        other = loss_of("clip_cov", given, share=share, **bounds)
        chosen = first.metrics["actor/pg_covfrac"]
        assert abs(int(chosen.sum()) - drawn) <= (1 if drawn == count else 0)
        assert (first.loss[chosen.bool()] == 0.0).all()
        assert torch.equal(first.loss, again.loss)
        assert drawn == count or not torch.equal(first.loss, other.loss)


def test_clip_cov_draws_nothing_where_nothing_lies_between():
    given = inputs([0.1, 0.0, -0.1], [1.0, 0.0, -1.0])
    before = torch.random.get_rng_state()
    output = loss_of("clip_cov", given)
    assert not output.metrics["actor/pg_covfrac"].any()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_of_equal_covariances_the_first_is_held_back():
    given = inputs([0.5, -0.5, 0.5, -0.5], [1.0, -1.0, 1.0, -1.0])
    chosen = loss_of("kl_cov", given, share=0.5).metrics["actor/pg_covfrac"]
    assert chosen.tolist() == [1.0, 1.0, 0.0, 0.0]
