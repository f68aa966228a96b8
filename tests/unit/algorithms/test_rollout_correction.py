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

from ppojob_trainer.algorithms import rollout_correction, rollout_diagnostics
from ppojob_trainer.algorithms.rollout_correction import Correction, Rejection, correct

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
        ours = rollout_diagnostics.diagnostics(correction, corrected, *columns)
        for name, value in theirs["metrics"].items():
            assert_metric(name, ours[f"rollout_corr/{name}"], value, 1e-6)


def test_the_table_has_everything():
    modes = {mode for case in TABLE["corrections"] for mode, _, _ in case["settings"]["rejection"]}
    assert modes | {"seq_max_k1"} == {mode for mode, _, _ in REJECTIONS}, "which verl has no more"


def test_a_veto_is_of_one_token_that_the_trainer_finds_unlikely():
    """verl until 0.6: a response goes where π / μ of one of its tokens is below a threshold."""
    threshold = 1e-3
    veto = Correction(rejection=(Rejection("seq_max_k1", high=1 / threshold),))
    mask = torch.tensor([True, True, True, False, True, True, True, True])
    rollout = torch.tensor([-1.0, -2.0, -1.0, -1.0, -9.0, -1.0, -1.0, -1.0])
    trainer = torch.tensor([-1.0, -8.5, -1.0, -99.0, -1.0, -7.8, -8.0, -1.0])
    corrected = correct(veto, trainer, rollout, mask, torch.tensor([2, 4, 2]))
    lost = [log < torch.tensor(threshold).log() for log in (trainer - rollout)]
    assert [bool(one) for one in lost] == [False] * 3 + [True] + [False] * 2 + [True, False]
    assert corrected.mask.tolist() == [True, True, True, False, True, True, False, False]


def test_weights_have_no_gradient():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    mask = torch.ones(2, dtype=torch.bool)
    corrected = correct(Correction("token"), logprobs, torch.zeros(2), mask, torch.tensor([2]))
    assert corrected.weights is not None
    assert not corrected.weights.requires_grad


def test_means_over_tokens_are_those_of_the_batch():
    for batch in fixed_batches():
        columns = columns_of(batch, torch.float64)
        for correction in corrections(rollout_correction):
            corrected = correct(correction, *columns)
            found = rollout_diagnostics.token_diagnostics(correction, corrected)
            assert tuple(found) == rollout_diagnostics.token_diagnostic_names(correction)
            expected = rollout_diagnostics.diagnostics(correction, corrected, *columns)
            for name, values in found.items():
                # There a share of responses, here of the tokens in them.
                if correction.weights == "sequence" and "ratio_fraction" in name:
                    continue
                if correction.normalize and name.endswith("rollout_is_mean"):
                    continue
                mean = values[batch.flat_mask].mean().item()
                assert mean == pytest.approx(expected[name], abs=1e-9), name
