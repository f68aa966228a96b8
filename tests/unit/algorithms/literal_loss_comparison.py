"""Compares the policy losses with their literal forms; raises AssertionError where they differ.

Like `literal_comparison`: the table of losses is an argument, and masked tokens hold a NaN.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import literal_policy_losses as literal
import torch
from literal_comparison import assert_close, flatten
from literal_policy_losses import Row, Token, Whole
from ragged_batches import Batch

Literal = Callable[[Row, list[float], Whole], list[Token]]


@dataclass(frozen=True)
class Case:
    """A loss with options, and the literal form of the same."""

    name: str
    options: dict[str, Any]
    form: Literal
    singled_out: Callable[[list[Row]], set[tuple[int, int]] | None] = lambda rows: set()


def _of_range(name: str, form: Any, *ranges: tuple[float, float]) -> Iterator[Case]:
    for low, high in ranges:
        yield Case(name, {"clip_low": low, "clip_high": high}, partial(form, low=low, high=high))


def _clip() -> Iterator[Case]:
    for low, high, dual in ((0.2, 0.2, 3.0), (0.1, 0.3, 0.0), (0.2, 0.28, 1.5)):
        options = {"clip_low": low, "clip_high": high, "dual_clip": dual}
        form = partial(literal.clip, low=low, high=high, dual=dual or math.inf)
        yield Case("clip", options, form)


def _sapo() -> Iterator[Case]:
    for positive, negative in ((1.0, 1.05), (0.5, 3.0)):
        options = {"tau_positive": positive, "tau_negative": negative}
        yield Case("sapo", options, partial(literal.sapo, positive=positive, negative=negative))


def _vespo() -> Iterator[Case]:
    for positive, negative in (((2.0, 3.0), (3.0, 2.0)), ((0.5, 1.0), (1.0, 0.25))):
        options = dict(zip(("k_positive", "lambda_positive"), positive, strict=True))
        options |= dict(zip(("k_negative", "lambda_negative"), negative, strict=True))
        yield Case("vespo", options, partial(literal.vespo, positive=positive, negative=negative))


def _dppo(by: str) -> Iterator[Case]:
    for low, high, top in ((0.15, 0.2, 20.0), (0.05, 0.01, 1.5)):
        options = {"divergence_low": low, "divergence_high": high, "ratio_limit": top}
        form = partial(literal.dppo, low=low, high=high, top=top, by=by)
        yield Case(f"dppo_{by}", options, form)


def _prime_rl() -> Iterator[Case]:
    for low, high, kl in ((0.2, 0.15, 0.001), (0.05, 0.3, 0.5)):
        options = {"divergence_low": low, "divergence_high": high, "kl_coefficient": kl}
        form = partial(literal.prime_rl, far=(low, high), kl=kl, signed=True)
        yield Case("prime_rl", options, form)
    for far, kl in ((0.1, 0.001), (0.3, 0.5)):
        form = partial(literal.prime_rl, far=(far, far), kl=kl, signed=False)
        yield Case("ipo", {"divergence": far, "kl_coefficient": kl}, form)


def _clip_cov() -> Iterator[Case]:
    # With all of the share every candidate is drawn, so that the draw does not matter.
    for low, high in ((0.0123, 5.0), (0.4567, 1.3579), (-1.2345, 0.6789)):
        options = {"share": 1.0, "covariance_low": low, "covariance_high": high}
        yield Case(
            "clip_cov",
            options | {"clip_low": 0.2, "clip_high": 0.28},
            partial(literal.clip_cov, low=0.2, high=0.28),
            partial(literal.between, low=low, high=high, clip_low=0.2, clip_high=0.28),
        )


def _kl_cov() -> Iterator[Case]:
    for share, coefficient in ((1.0, 1.0), (0.3, 0.5), (0.0002, 2.0)):
        options = {"share": share, "coefficient": coefficient}

        def singled_out(rows: list[Row], share: float = share) -> set[tuple[int, int]] | None:
            count = sum(sum(row.mask) for row in rows)
            return literal.highest(rows, max(1, int(share * count)))

        yield Case("kl_cov", options, partial(literal.kl_cov, coefficient=coefficient), singled_out)


def _bypass() -> Iterator[Case]:
    bounds = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
    for form in ("clip", "reinforce"):
        literal_form = partial(literal.bypass, form=form, bounds=(0.2, 0.28, 3.0))
        yield Case("bypass", {"form": form} | bounds, literal_form)


CASES = (
    *_clip(),
    *_dppo("tv"),
    *_dppo("kl"),
    *_of_range("gspo", literal.gspo, (0.0003, 0.0004), (0.2, 0.28)),
    *_sapo(),
    *_vespo(),
    Case("gpg", {}, literal.gpg),
    *_clip_cov(),
    *_kl_cov(),
    *_of_range("geo_mean", literal.geo_mean, (0.4, 0.4), (0.3, 0.7)),
    *(Case("dro", {"beta": beta}, partial(literal.dro, beta=beta)) for beta in (0.5, 2.0)),
    *_of_range("cispo", literal.cispo, (0.2, 0.28), (1.0, 0.2), (10.0, 5.0)),
    *_prime_rl(),
    *(Case("gvpo", {"beta": beta}, partial(literal.gvpo, beta=beta)) for beta in (0.1, 1.5)),
    *(
        Case("trajectory_balance", {"beta": beta}, partial(literal.trajectory_balance, beta=beta))
        for beta in (0.5, 2.0)
    ),
    *(
        Case("flowrl", {"beta": b, "ratio_limit": w}, partial(literal.flowrl, beta=b, limit=w))
        for b, w in ((15.0, 10.0), (0.5, 1.5))
    ),
    *_bypass(),
)
METRICS = {
    "actor/pg_clipfrac": lambda token: float(token.clipped),
    "actor/pg_clipfrac_lower": lambda token: float(token.lower),
    "actor/pg_covfrac": lambda token: float(token.chosen),
    "actor/ppo_kl": lambda token: -token.log_ratio,
    "actor/log_z": lambda token: token.log_z,
}


def rows_of(batch: Batch) -> list[Row]:
    columns = (batch.logprobs, batch.old_logprobs, batch.rollout_logprobs, batch.advantages)
    return [Row(*row) for row in zip(*columns, batch.mask, batch.ref_logprobs, strict=True)]


def wholes(batch: Batch, rows: list[Row], chosen: set[tuple[int, int]]) -> Iterator[Whole]:
    for i, own in enumerate(batch.groups):
        group = [row for row, other in zip(rows, batch.groups, strict=True) if other == own]
        yield Whole(i, chosen, group, log_z_of(own))


def log_z_of(group: int) -> float:
    return (group % 3) / 4 - 0.25


def inputs_of(batch: Batch, dtype: torch.dtype) -> Any:
    names = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages", "ref_logprobs")
    columns = {name: batch.flat_poisoned(name, dtype) for name in names}
    columns["logprobs"].requires_grad_()
    of_rows = torch.tensor(list(map(log_z_of, batch.groups)), dtype=dtype)
    columns["log_z"] = of_rows.repeat_interleave(batch.lengths)
    of_losses = importlib.import_module("ppojob_trainer.algorithms.policy_losses.inputs")
    return of_losses.LossInputs(
        **columns, mask=batch.flat_mask, lengths=batch.lengths, groups=batch.row_groups
    )


def tried(batch: Batch, name: str) -> Iterator[tuple[Case, list[tuple[Row, Whole]]]]:
    """The cases of a loss that say something of a batch, with its rows."""
    for case in (case for case in CASES if case.name == name):
        rows = rows_of(batch)
        chosen = case.singled_out(rows)
        if chosen is not None:
            yield case, list(zip(rows, wholes(batch, rows, chosen), strict=True))


def compare_loss(table: ModuleType, batch: Batch, dtype: torch.dtype, name: str) -> None:
    for case, rows in tried(batch, name):
        tokens = [token for row, whole in rows for token in case.form(row, row.logprobs, whole)]
        output = table.POLICY_LOSSES[name].compute(inputs_of(batch, dtype), **case.options)
        assert_close(output.loss, [token.loss for token in tokens])
        assert tuple(output.metrics) == table.POLICY_LOSSES[name].metrics
        for metric, values in output.metrics.items():
            assert_close(values, [METRICS[metric](token) for token in tokens])


def compare_loss_gradient(table: ModuleType, batch: Batch, dtype: torch.dtype, name: str) -> None:
    for case, rows in tried(batch, name):
        inputs = inputs_of(batch, dtype)
        loss = table.POLICY_LOSSES[name].compute(inputs, **case.options).loss
        assert loss.requires_grad
        (gradient,) = torch.autograd.grad(loss.sum(), inputs.logprobs)
        expected = [slopes(case.form, row, whole) for row, whole in rows]
        assert_close(gradient, flatten(expected))


def slopes(form: Literal, row: Row, whole: Whole) -> list[float]:
    """Derivatives of the row's summed loss by its log-probabilities, by central differences."""
    step, result = 3e-7, []  # drawn ratios lie no closer to a bound, where a slope has two sides
    for t in range(len(row.mask)):
        totals = []
        for sign in (1.0, -1.0):
            moved = list(row.logprobs)
            moved[t] += sign * step
            tokens = form(replace(row, logprobs=moved), row.logprobs, whole)
            totals.append(sum(token.loss for token in tokens))
        result.append((totals[0] - totals[1]) / (2.0 * step))
    return result
