"""Weights and rejection of tokens, and what is told of them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from correction_comparison import (
    REJECTIONS,
    assert_metric,
    columns_of,
    compare_correction,
    corrections,
)
from literal_comparison import assert_close
from ragged_batches import DTYPES, fixed_batches
from verl_batches import stored_batches, table

from ppojob_trainer.algorithms import rollout_correction
from ppojob_trainer.algorithms.rollout_correction import (
    Correction,
    Rejection,
    correct,
    importance_ratio,
)
from ppojob_trainer.algorithms.rollout_diagnostics import (
    diagnostics,
    token_diagnostic_names,
    token_diagnostics,
)

TABLE = table("verl_rollout_correction")


def of_settings(settings: dict[str, Any]) -> Correction:
    modes = tuple(Rejection(mode, high, low) for mode, low, high in settings["rejection"])
    return Correction(**{**settings, "rejection": modes})


def test_equal_to_the_literal_form_far_from_the_engine():
    for batch in fixed_batches():
        far = [[16.0 * value for value in row] for row in batch.rollout_logprobs]
        for dtype in DTYPES:
            compare_correction(rollout_correction, replace(batch, rollout_logprobs=far), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", TABLE["corrections"], ids=lambda case: str(case["settings"]))
def test_equal_to_verl(case: dict[str, Any], dtype: torch.dtype):
    correction = of_settings(case["settings"])
    for stored, theirs in zip(stored_batches(dtype), case["results"], strict=True):
        logprobs = (stored["old_logprobs"], stored["rollout_logprobs"])
        columns = (*logprobs, stored.mask, stored.lengths)
        corrected = correct(correction, *columns)
        assert corrected.mask.tolist() == [bool(kept) for kept in theirs["mask"]]
        if theirs["weights"] is None:
            assert corrected.weights is None
        else:
            assert_close(corrected.weights, theirs["weights"])
        ours = diagnostics(correction, corrected, *columns)
        for name, value in theirs["metrics"].items():
            assert_metric(name, ours[f"rollout_corr/{name}"], value, 1e-6)


def test_the_table_has_everything():
    modes = {mode for case in TABLE["corrections"] for mode, _, _ in case["settings"]["rejection"]}
    assert modes == {mode for mode, _, _ in REJECTIONS}


def test_by_hand():
    # Ratios 2 and 1/4 of one response, and 1 of another; its second token is not trained.
    log_ratio = torch.tensor([math.log(2.0), math.log(0.25), 0.0, math.nan])
    zero, mask = torch.zeros(4), torch.tensor([True, True, True, False])
    lengths = torch.tensor([2, 2])

    def weights(*settings: Any) -> list[float]:
        found = correct(Correction(*settings), log_ratio, zero, mask, lengths).weights
        assert found is not None
        return found.tolist()

    assert weights("token", 1.5) == pytest.approx([1.5, 0.25, 1.0, 0.0])
    assert weights("token", 1.5, 0.2) == pytest.approx([0.0, 0.25, 1.0, 0.0])
    assert weights("sequence", 0.75) == pytest.approx([0.5, 0.5, 0.75, 0.0])
    # The mean over three tokens is 2.75 / 3, that over two responses 0.75.
    assert weights("token", 1.5, None, True) == pytest.approx([18 / 11, 3 / 11, 12 / 11, 0.0])
    assert weights("sequence", 2.0, None, True) == pytest.approx([2 / 3, 2 / 3, 4 / 3, 0.0])

    def kept(mode: str, high: float, low: float | None = None) -> list[bool]:
        correction = Correction(rejection=(Rejection(mode, high, low),))
        return correct(correction, log_ratio, zero, mask, lengths).mask.tolist()

    # The bounds of k1 are those of engine over trainer, 1/2 and 4 here: twice the engine's
    # probability is within [0.4, 3], four times less is not.
    assert kept("token_k1", 3.0, 0.4) == [True, False, True, False]
    assert kept("token_k1", 4.1) == [True, True, True, False]
    assert kept("seq_sum_k1", 1.9, 0.1) == [False, False, True, False]
    assert kept("seq_mean_k1", 1.42, 0.9) == [True, True, True, False]
    assert kept("seq_max_k2", 0.9) == [False, False, True, False]


def test_weights_of_one_policy_are_1():
    column, lengths = torch.tensor([-1.5, -0.25, -3.0]), torch.tensor([2, 1])
    for level in ("token", "sequence"):
        ratio = importance_ratio(torch.zeros(3), torch.ones(3, dtype=torch.bool), lengths, level)
        assert ratio.tolist() == [1.0] * 3
    for correction in corrections(rollout_correction):
        corrected = correct(correction, column, column, torch.ones(3, dtype=torch.bool), lengths)
        assert corrected.mask.all()
        assert corrected.weights is None or corrected.weights.tolist() == [1.0] * 3


def test_weights_have_no_gradient():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    mask = torch.ones(2, dtype=torch.bool)
    corrected = correct(Correction("token"), logprobs, torch.zeros(2), mask, torch.tensor([2]))
    assert corrected.weights is not None
    assert not corrected.weights.requires_grad


def test_rows_without_trained_tokens_change_nothing():
    for batch in fixed_batches():
        columns = columns_of(batch, torch.float64)
        empty = torch.full((3,), math.nan, dtype=torch.float64)
        more = (
            torch.cat([columns[0], empty]),
            torch.cat([columns[1], empty]),
            torch.cat([columns[2], torch.zeros(3, dtype=torch.bool)]),
            torch.cat([columns[3], torch.tensor([3, 0])]),
        )
        for correction in corrections(rollout_correction):
            one, two = correct(correction, *columns), correct(correction, *more)
            assert torch.equal(one.mask, two.mask[:-3])
            assert one.mean == two.mean
            told = diagnostics(correction, one, *columns), diagnostics(correction, two, *more)
            assert str(told[0]) == str(told[1])


def test_how_rows_are_cut_changes_no_weight():
    # So the weights of a micro-batch are those of the batch; only a mean is one of all rows.
    columns = columns_of(fixed_batches()[0], torch.float32)
    parts = columns[3].split([1, len(columns[3]) - 1])
    at = int(parts[0].sum())
    for correction in corrections(rollout_correction):
        if correction.normalize:
            continue
        whole = correct(correction, *columns)
        first = correct(correction, *(c[:at] for c in columns[:3]), parts[0])
        last = correct(correction, *(c[at:] for c in columns[:3]), parts[1])
        assert torch.equal(whole.mask, torch.cat([first.mask, last.mask]))
        if whole.weights is not None:
            assert torch.equal(whole.weights, torch.cat([first.weights, last.weights]))


def test_means_over_tokens_are_those_of_the_batch():
    for batch in fixed_batches():
        columns = columns_of(batch, torch.float64)
        for correction in corrections(rollout_correction):
            corrected = correct(correction, *columns)
            found = token_diagnostics(correction, corrected)
            assert tuple(found) == token_diagnostic_names(correction)
            expected = diagnostics(correction, corrected, *columns)
            for name, values in found.items():
                # There a share of responses, here of the tokens in them.
                if correction.weights == "sequence" and "ratio_fraction" in name:
                    continue
                if correction.normalize and name.endswith("rollout_is_mean"):
                    continue
                mean = values[batch.flat_mask].mean().item()
                assert mean == pytest.approx(expected[name], abs=1e-9), name


def test_nothing_trained_has_no_diagnostics():
    mask, none = torch.zeros(2, dtype=torch.bool), torch.full((2,), math.nan)
    for correction in corrections(rollout_correction):
        columns = (none, none, mask, torch.tensor([2]))
        assert diagnostics(correction, correct(correction, *columns), *columns) == {}
