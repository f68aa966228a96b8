"""Numbers that verl's own functions gave, stored in verl_numbers.json, agree with ours.

A loss that verl has not is TRL's, in trl_numbers.json, or prime-rl's, in prime_rl_numbers.json;
those of groups are its recipe's and TBA's, in group_numbers.json.
Those of verl's recipe PRIME are in prime_numbers.json, with rows of its own. All were made outside
of this tree by running the commit that the file names. Rewards lie on trained tokens and every row
has one, so that what departs from verl on purpose plays no part.
"""

from typing import Any

import pytest
import torch
from literal_comparison import assert_close
from ragged_batches import DTYPES
from verl_batches import OF_GROUPS, PRIME_RL, TRL, VERL, advantages_of_trl, stored_batches, table

from ppojob_trainer.algorithms.advantages import ADVANTAGES, OF_SCORES
from ppojob_trainer.algorithms.aggregate import AGGREGATIONS
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.implicit_rewards import (
    PROCESS_ADVANTAGES,
    implicit_reward_metrics,
    outcome_loss,
)
from ppojob_trainer.algorithms.kl import KL, kl_estimate
from ppojob_trainer.algorithms.masked import row_ends, row_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES
from ppojob_trainer.algorithms.token_masks import off_policy

LOSSES = (*VERL["losses"], *TRL["losses"], *PRIME_RL["losses"], *OF_GROUPS["losses"])
METRICS = {
    "ppo_kl": "actor/ppo_kl",
    "pg_clipfrac": "actor/pg_clipfrac",
    "pg_clipfrac_lower": "actor/pg_clipfrac_lower",
    "is_masked": "actor/pg_clipfrac",  # as prime-rl calls it
}
OTHER_METRICS = {
    # The mean of |log rho| there.
    ("kl_cov", "ppo_kl"),
    # Every token outside the range there, by the sign of the advantage.
    ("geo_mean", "pg_clipfrac"),
    ("geo_mean", "pg_clipfrac_lower"),
    # 0 there, for a bound that these have not.
    ("sapo", "pg_clipfrac"),
    ("sapo", "pg_clipfrac_lower"),
    ("gspo", "pg_clipfrac_lower"),
    ("cispo", "pg_clipfrac_lower"),
}


def results(part: str) -> list[Any]:
    """A case of each entry of a part of the table."""
    names = [case.get("type") or case.get("mode") or case.get("estimator") for case in VERL[part]]
    return [pytest.param(case, id=name) for case, name in zip(VERL[part], names, strict=True)]


def test_the_table_has_everything():
    assert {case["type"] for case in LOSSES} == POLICY_LOSSES.keys()
    estimators = {case["type"] for case in VERL["estimators"]}
    assert estimators | {"reinforce", "maxrl", "spo", "online_dpo"} == (
        ADVANTAGES.keys() | CRITIC_ADVANTAGES.keys() | TOKEN_BASELINES.keys()
    )
    assert {case["type"] for case in VERL["estimators"] if "kept" in case} == estimators
    assert {case["estimator"] for case in VERL["kl"]} == KL.keys()
    assert {case["mode"] for case in VERL["aggregations"]} == set(AGGREGATIONS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", LOSSES, ids=lambda case: f"{case['type']} {case['settings']}")
def test_losses(case: dict[str, Any], dtype: torch.dtype):
    for number, stored in enumerate(stored_batches(dtype)):
        theirs = case["results"][number]
        is_of_trl = case in TRL["losses"]
        inputs = LossInputs(
            logprobs=stored["logprobs"].requires_grad_(),
            old_logprobs=stored["old_logprobs"],
            rollout_logprobs=stored["rollout_logprobs"],
            advantages=(
                advantages_of_trl(number, stored, dtype) if is_of_trl else stored["advantages"]
            ),
            mask=stored.mask,
            lengths=stored.lengths,
            groups=stored.groups,
            ref_logprobs=stored["ref_logprobs"],
            log_z=(stored.groups.to(dtype) / 4 + 0.25).repeat_interleave(stored.lengths),
        )
        output = POLICY_LOSSES[case["type"]].compute(inputs, **case["settings"])
        loss = stored.total(output.loss, case.get("aggregation", "token_mean"))
        (gradient,) = torch.autograd.grad(loss, inputs.logprobs)
        assert_close(loss, [theirs["loss"]])
        assert_close(gradient, theirs["gradient"])
        for metric, name in METRICS.items():
            if theirs.get(metric) is None or (case["type"], metric) in OTHER_METRICS:
                continue
            is_drawn = (case["type"], metric) == ("clip_cov", "pg_clipfrac")
            ours = output.metrics["actor/pg_covfrac" if is_drawn else name]
            assert_close(stored.total(ours, "token_mean"), [theirs[metric]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", results("estimators"))
def test_estimators(case: dict[str, Any], dtype: torch.dtype):
    for number, (stored, theirs) in enumerate(
        zip(stored_batches(dtype), case["results"], strict=True)
    ):
        given = {
            name: torch.tensor(of_batches[number], dtype=dtype)
            for name, of_batches in case.get("given", {}).items()
        }
        mask = stored.mask
        if "kept" in case:
            kept = torch.tensor([bool(k) for row in case["kept"][number] for k in row])
            if case["type"] in OF_SCORES:
                given["kept"] = kept
            else:
                mask = kept
        if case["type"] in CRITIC_ADVANTAGES:
            columns = (stored["rewards"], stored["values"], mask, stored.lengths)
            ours = CRITIC_ADVANTAGES[case["type"]](*columns, **case["options"])
        elif case["type"] in TOKEN_BASELINES:
            columns = (stored["rewards"], mask, stored.lengths, stored.groups)
            given["old_logprobs"] = stored["old_logprobs"]
            ours = TOKEN_BASELINES[case["type"]](*columns, **given)
        else:
            columns = (stored["rewards"], mask, stored.lengths, stored.groups)
            ours = ADVANTAGES[case["type"]](*columns, **case["options"], **given)
        assert_close(ours.advantages, theirs["advantages"])
        assert_close(ours.returns, theirs["returns"])


@pytest.mark.parametrize("case", table("prime_numbers")["cases"], ids=lambda case: case["samples"])
def test_process_rewards(case: dict[str, Any]):
    process, outcomes = (
        torch.tensor(case[name], dtype=torch.float64) for name in ("process_rewards", "outcomes")
    )
    lengths, mask = torch.tensor(case["lengths"]), torch.ones(len(process), dtype=torch.bool)
    groups = torch.arange(len(lengths)) // case["samples"]
    rewards = torch.zeros_like(process)
    rewards[row_ends(mask, lengths)] = outcomes
    weights = {name: case[name] for name in ("process_weight", "outcome_weight")}
    ours = PROCESS_ADVANTAGES["prime"](rewards, process, mask, lengths, groups, **weights)
    assert_close(ours.advantages, case["advantages"])
    assert_close(ours.returns, case["returns"])
    loss = outcome_loss(row_sum(process, mask, lengths), outcomes).mean()
    assert_close(loss, [case["loss"]])
    told = implicit_reward_metrics(
        process, outcomes, mask, lengths, groups, beta=case["beta"], normalize=True
    )
    assert told == pytest.approx(case["metrics"], rel=1e-6)


@pytest.mark.parametrize("case", results("kl"))
def test_kl(case: dict[str, Any]):
    for number, stored in enumerate(stored_batches()):
        logprobs = stored["logprobs"].requires_grad_()
        whole = torch.ones_like(logprobs, dtype=torch.bool)
        ours = kl_estimate(logprobs, stored["ref_logprobs"], case["estimator"], mask=whole)
        assert_close(ours, case["results"][number])
        if "gradients" in case:
            (gradient,) = torch.autograd.grad(ours.sum(), logprobs)
            assert_close(gradient, case["gradients"][number])


@pytest.mark.parametrize("case", results("aggregations"))
def test_aggregations(case: dict[str, Any]):
    for stored, theirs in zip(stored_batches(), case["results"], strict=True):
        assert_close(stored.total(stored["advantages"], case["mode"]), [theirs])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", TRL["off_policy_masks"], ids=lambda case: case["threshold"])
def test_off_policy_masks(case: dict[str, Any], dtype: torch.dtype):
    """TRL keeps or drops whole responses, which have one advantage there."""
    for number, stored in enumerate(stored_batches(dtype)):
        columns = (stored["logprobs"], stored["rollout_logprobs"])
        advantages = advantages_of_trl(number, stored, dtype)
        found = off_policy(*columns, advantages, stored.mask, stored.lengths, case["threshold"])
        kept = torch.tensor([bool(k) for k in case["kept"][number]])
        dropped = ~kept.repeat_interleave(stored.lengths) & stored.mask
        assert found.tolist() == dropped.tolist()
