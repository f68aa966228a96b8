"""Numbers that verl's own functions gave, stored in verl_numbers.json, agree with ours.

A loss that verl has not is TRL's, in trl_numbers.json, or prime-rl's, in prime_rl_numbers.json. All
were made outside of this tree by running the commit that the file names. Rewards lie on trained
tokens and every row has one, so that what departs from verl on purpose plays no part.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from literal_comparison import assert_close
from ragged_batches import DTYPES
from torch import Tensor

from ppojob_trainer.algorithms.advantages import ADVANTAGES, OF_SCORES
from ppojob_trainer.algorithms.aggregate import AGGREGATIONS, aggregate
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.kl import KL, kl_estimate
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES

TABLE = json.loads(Path(__file__).with_name("verl_numbers.json").read_text(encoding="utf-8"))
OF_TRL = json.loads(Path(__file__).with_name("trl_numbers.json").read_text(encoding="utf-8"))
OF_PRIME_RL = json.loads(
    Path(__file__).with_name("prime_rl_numbers.json").read_text(encoding="utf-8")
)
METRICS = ("ppo_kl", "pg_clipfrac", "pg_clipfrac_lower")
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


class Stored:
    """A batch of the table."""

    def __init__(self, batch: dict[str, Any], dtype: torch.dtype) -> None:
        self._batch, self._dtype = batch, dtype
        self.mask = torch.tensor([bool(m) for row in batch["mask"] for m in row])
        self.lengths = torch.tensor([len(row) for row in batch["mask"]])
        self.groups = torch.tensor(batch["groups"])

    def __getitem__(self, name: str) -> Tensor:
        column = [value / 64 for row in self._batch[name] for value in row]
        return torch.tensor(column, dtype=self._dtype)

    def total(self, values: Tensor, mode: str) -> Tensor:
        return aggregate(
            values,
            self.mask,
            self.lengths,
            mode,
            global_tokens=int(self.mask.sum()),
            global_sequences=len(self.lengths),
            scale_tokens=32,
        )


def batches(dtype: torch.dtype) -> list[Stored]:
    return [Stored(batch, dtype) for batch in TABLE["batches"]]


def results(part: str) -> list[Any]:
    """A case of each entry of a part of the table."""
    names = [case.get("type") or case.get("mode") or case.get("estimator") for case in TABLE[part]]
    return [pytest.param(case, id=name) for case, name in zip(TABLE[part], names, strict=True)]


def test_the_table_has_everything():
    losses = (*TABLE["losses"], *OF_TRL["losses"], *OF_PRIME_RL["losses"])
    assert {case["type"] for case in losses} == POLICY_LOSSES.keys()
    estimators = {case["type"] for case in TABLE["estimators"]}
    assert estimators == ADVANTAGES.keys() | CRITIC_ADVANTAGES.keys() | TOKEN_BASELINES.keys()
    assert {case["type"] for case in TABLE["estimators"] if "kept" in case} == estimators
    assert {case["estimator"] for case in TABLE["kl"]} == KL.keys()
    assert {case["mode"] for case in TABLE["aggregations"]} == AGGREGATIONS.keys()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", results("losses"))
def test_losses(case: dict[str, Any], dtype: torch.dtype):
    for stored, theirs in zip(batches(dtype), case["results"], strict=True):
        logprobs = stored["logprobs"].requires_grad_()
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=stored["old_logprobs"],
            rollout_logprobs=stored["rollout_logprobs"],
            advantages=stored["advantages"],
            mask=stored.mask,
            lengths=stored.lengths,
            groups=stored.groups,
        )
        output = POLICY_LOSSES[case["type"]].compute(inputs, **case["settings"])
        loss = stored.total(output.loss, case["aggregation"])
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert_close(loss, [theirs["loss"]])
        assert_close(gradient, theirs["gradient"])
        for metric in METRICS:
            if theirs[metric] is None or (case["type"], metric) in OTHER_METRICS:
                continue
            is_drawn = (case["type"], metric) == ("clip_cov", "pg_clipfrac")
            ours = output.metrics["actor/pg_covfrac" if is_drawn else f"actor/{metric}"]
            assert_close(stored.total(ours, "token_mean"), [theirs[metric]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OF_TRL["losses"], ids=lambda case: str(case["settings"]))
def test_losses_of_trl(case: dict[str, Any], dtype: torch.dtype):
    for number, stored in enumerate(batches(dtype)):
        theirs = case["results"][number]
        logprobs = stored["logprobs"].requires_grad_()
        of_rows = torch.tensor(OF_TRL["advantages"][number], dtype=dtype)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=stored["old_logprobs"],
            rollout_logprobs=stored["rollout_logprobs"],
            advantages=of_rows.repeat_interleave(stored.lengths),
            mask=stored.mask,
            lengths=stored.lengths,
            groups=stored.groups,
        )
        output = POLICY_LOSSES[case["type"]].compute(inputs, **case["settings"])
        loss = stored.total(output.loss, case["aggregation"])
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert_close(loss, [theirs["loss"]])
        assert_close(gradient, theirs["gradient"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OF_PRIME_RL["losses"], ids=lambda case: str(case["settings"]))
def test_losses_of_prime_rl(case: dict[str, Any], dtype: torch.dtype):
    for stored, theirs in zip(batches(dtype), case["results"], strict=True):
        logprobs = stored["logprobs"].requires_grad_()
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=stored["old_logprobs"],
            rollout_logprobs=stored["rollout_logprobs"],
            advantages=stored["advantages"],
            mask=stored.mask,
            lengths=stored.lengths,
            groups=stored.groups,
        )
        output = POLICY_LOSSES[case["type"]].compute(inputs, **case["settings"])
        loss = stored.total(output.loss, "token_mean")
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert_close(loss, [theirs["loss"]])
        assert_close(gradient, theirs["gradient"])
        share = stored.total(output.metrics["actor/pg_clipfrac"], "token_mean")
        assert_close(share, [theirs["is_masked"]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", results("estimators"))
def test_estimators(case: dict[str, Any], dtype: torch.dtype):
    for number, (stored, theirs) in enumerate(zip(batches(dtype), case["results"], strict=True)):
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


@pytest.mark.parametrize("case", results("kl"))
def test_kl(case: dict[str, Any]):
    for number, stored in enumerate(batches(torch.float64)):
        logprobs = stored["logprobs"].requires_grad_()
        ours = kl_estimate(logprobs, stored["ref_logprobs"], case["estimator"])
        assert_close(ours, case["results"][number])
        if "gradients" in case:
            (gradient,) = torch.autograd.grad(ours.sum(), logprobs)
            assert_close(gradient, case["gradients"][number])


@pytest.mark.parametrize("case", results("aggregations"))
def test_aggregations(case: dict[str, Any]):
    for stored, theirs in zip(batches(torch.float64), case["results"], strict=True):
        assert_close(stored.total(stored["advantages"], case["mode"]), [theirs])
