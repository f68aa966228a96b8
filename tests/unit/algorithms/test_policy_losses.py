"""The policy losses but `clip`, which has `test_clip` for itself."""

import math
from dataclasses import replace

import pytest
import torch
from literal_loss_comparison import CASES, compare_loss
from ragged_batches import DTYPES, fixed_batches

from ppojob_api.v1alpha1.policy_loss import LOSSES, DroSpec, PolicyLossSpec
from ppojob_trainer.algorithms.aggregate import aggregate
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
    )


def loss_of(name: str, given: LossInputs, **options: object) -> LossOutput:
    return POLICY_LOSSES[name].compute(given, **(spec(name).settings() | options))


def test_every_loss_has_a_literal_form():
    assert set(NAMES) == POLICY_LOSSES.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_the_literal_forms_far_from_the_old_policy(name: str):
    for batch in fixed_batches():
        far = {
            column: [[8.0 * value for value in row] for row in getattr(batch, column)]
            for column in ("old_logprobs", "rollout_logprobs")
        }
        for dtype in DTYPES:
            compare_loss(table, replace(batch, **far), dtype, name)


@pytest.mark.parametrize(
    ("name", "options", "losses"),
    [
        # Ratios 2, 1/2 and 1, advantages 1, 1 and -2, log-probabilities ln 2 - 1, -ln 2 - 1, -1.
        # (rho, A) = (2, 1): e^-1 (2 - 1) = 0.368 up, more than 0.15: left alone.
        # (1/2, 1): fell with A > 0: weight 1/2. (1, -2): weight 1.
        ("dppo_tv", {}, [0.0, 0.5 * (math.log(2.0) + 1.0), -2.0]),
        # With a limit of 0.4 the first one is let go, its weight held at 1.5.
        (
            "dppo_tv",
            {"divergence_high": 0.4, "ratio_limit": 1.5},
            [1.5 * (1.0 - math.log(2.0)), 0.5 * (math.log(2.0) + 1.0), -2.0],
        ),
        # The log-ratios of the row add up to 0: its ratio is 1, and nothing is clipped.
        ("gspo", {}, [-1.0, -1.0, 2.0]),
        # 4 / (1 + e^-(rho - 1)) with tau 1: at rho 2, 1/2, and 1 with A < 0: 4/1.05 * 1/2.
        (
            "sapo",
            {},
            [
                -4.0 / (1.0 + math.exp(-1.0)),
                -4.0 / (1.0 + math.exp(0.5)),
                2.0 * 2.0 / 1.05,
            ],
        ),
        # The ratio of the response is 1, and so is the weight, whatever the kernel.
        ("vespo", {}, [1.0 - math.log(2.0), 1.0 + math.log(2.0), -2.0]),
        # The sampler's are e^-1: 2 e^-1 is 0.37 up, left alone with A > 0; with a limit of 0.4 it
        # is not. ipo leaves the second alone too, 0.18 down.
        ("prime_rl", {"kl_coefficient": 0.0}, [0.0, -0.5, 2.0]),
        (
            "prime_rl",
            {"divergence_high": 0.4, "kl_coefficient": 0.5},
            [-2.0 + 0.5 * math.log(2.0) ** 2, -0.5 + 0.5 * math.log(2.0) ** 2, 2.0],
        ),
        ("ipo", {"kl_coefficient": 0.5}, [0.5 * math.log(2.0) ** 2, 0.5 * math.log(2.0) ** 2, 2.0]),
        ("gpg", {}, [1.0 - math.log(2.0), 1.0 + math.log(2.0), -2.0]),
        # Weights 1.2, 0.5 (no lower bound) and 1.
        ("cispo", {}, [1.2 * (1.0 - math.log(2.0)), 0.5 * (1.0 + math.log(2.0)), -2.0]),
        # beta/2 (ln 2)^2 each, but for the last one.
        (
            "dro",
            {"beta": 0.5},
            [
                1.0 - math.log(2.0) + 0.25 * math.log(2.0) ** 2,
                1.0 + math.log(2.0) + 0.25 * math.log(2.0) ** 2,
                -2.0,
            ],
        ),
        # mean A = 0; clipped log-ratios 0.4, -ln 2 (pessimistic) and 0: A (0) times anything.
        ("geo_mean", {}, [0.0, 0.0, 0.0]),
        ("bypass", {}, [-1.2, -0.5, 2.0]),
        # Product of the ratios: 1.
        (
            "bypass",
            {"form": "reinforce"},
            [1.0 - math.log(2.0), 1.0 + math.log(2.0), -2.0],
        ),
    ],
)
def test_by_hand(name: str, options: dict[str, float], losses: list[float]):
    given = inputs([math.log(2.0), -math.log(2.0), 0.0], [1.0, 1.0, -2.0])
    assert loss_of(name, given, **options).loss.tolist() == pytest.approx(losses, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "lower"),
    [
        # inside the range: -A rho
        (1.1, 2.0, -2.2, 0.0, 0.0),
        (0.9, -2.0, 1.8, 0.0, 0.0),
        # A > 0 above the range: max(-2 * 1.5, -2 * 1.3) = -2.6
        (1.5, 2.0, -2.6, 1.0, 0.0),
        # A > 0 below the range: max(-2 * 0.5, -2 * 0.8) = -1, not clipped
        (0.5, 2.0, -1.0, 0.0, 0.0),
        # A < 0 below the range: max(2 * 0.5, 2 * 0.8) = 1.6
        (0.5, -2.0, 1.6, 1.0, 0.0),
        # A < 0 above the range: max(2 * 1.5, 2 * 1.3) = 3, not clipped
        (1.5, -2.0, 3.0, 0.0, 0.0),
        # A < 0 far above: max(2 * 5, 2 * 1.3) = 10, held at 2 * 3 = 6
        (5.0, -2.0, 6.0, 0.0, 1.0),
        # no advantage, nothing to clip
        (5.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_clip_by_hand(ratio: float, advantage: float, loss: float, clipped: float, lower: float):
    output = loss_of("clip", inputs([math.log(ratio)], [advantage]), clip_high=0.3)
    assert output.loss.item() == pytest.approx(loss, abs=1e-12)
    assert output.metrics["actor/pg_clipfrac"].item() == clipped
    assert output.metrics["actor/pg_clipfrac_lower"].item() == lower


def test_clip_cuts_off_log_ratios_at_20():
    given = inputs([90.0, -90.0], [-1.0, 1.0], old=-100.0)
    output = loss_of("clip", given, dual_clip=0.0)
    # -A e^20 = 485165195.41 and -A e^-20 = -2.0611536e-9; beyond the limit there is no gradient
    assert output.loss.tolist() == pytest.approx([485165195.41, -2.0611536e-9], rel=1e-6)
    assert output.metrics["actor/ppo_kl"].tolist() == [-20.0, 20.0]
    (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
    assert gradient.tolist() == [0.0, 0.0]


def test_geo_mean_by_hand():
    # ln 2 is held at 0.4, -ln 2 is not held: e^((0.4 - ln 2) / 2), A = 1; the other row: A = -3,
    # ln 2 is not held, -ln 2 at -0.4.
    given = inputs([math.log(2.0), -math.log(2.0)] * 2, [1.0, 1.0, -3.0, -3.0], [2, 2])
    output = loss_of("geo_mean", given)
    first = -math.exp((0.4 - math.log(2.0)) / 2.0)
    second = 3.0 * math.exp((math.log(2.0) - 0.4) / 2.0)
    assert output.loss.tolist() == pytest.approx([first, first, second, second])
    assert output.metrics["actor/pg_clipfrac"].tolist() == [1.0, 0.0, 0.0, 1.0]


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
def test_nothing_trained_gives_zeros(name: str):
    given = inputs([0.5, 0.1], [1.0, -1.0], mask=[False, False])
    output = loss_of(name, given)
    (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
    assert output.loss.tolist() == gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_keeps_what_its_row_in_the_table_says(name: str):
    given = inputs([0.5, -1.0, 0.0], [0.0, 0.0, 0.0], [2, 1])
    output = loss_of(name, given)
    assert tuple(output.metrics) == POLICY_LOSSES[name].metrics
    assert not any(values.requires_grad for values in output.metrics.values())
    if POLICY_LOSSES[name].vanishes_without_advantage:
        (gradient,) = torch.autograd.grad(output.loss.sum(), given.logprobs)
        assert gradient.tolist() == [0.0] * 3


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("_cov") and n != "dro"])
def test_at_the_old_policy_the_gradient_is_the_plain_one(name: str):
    given = inputs([0.0] * 3, [1.5, 1.5, -2.0], [2, 1])
    loss = aggregate(
        loss_of(name, given).loss,
        given.mask,
        given.lengths,
        "sequence_mean_token_mean",
        global_tokens=3,
        global_sequences=2,
    )
    (gradient,) = torch.autograd.grad(loss, given.logprobs)
    assert gradient.tolist() == pytest.approx([-1.5 / 4, -1.5 / 4, 2.0 / 2])


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("_cov")])
def test_how_rows_are_cut_changes_no_loss(name: str):
    ratios, weights = [0.3, -0.2, 0.1, 0.05, -0.4], [1.0, 1.0, -2.0, -2.0, 0.5]
    whole = loss_of(name, inputs(ratios, weights, [2, 2, 1])).loss
    parts = [
        loss_of(name, inputs(ratios[a:b], weights[a:b], [b - a])).loss
        for a, b in ((0, 2), (2, 4), (4, 5))
    ]
    assert torch.equal(whole, torch.cat(parts))


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
