"""The product against its literal forms, on drawn batches; and that the comparison can fail.

For the second, each case changes one piece of the product's source, loads its modules with that
change, and runs the comparison on batches that never change. A comparison that accepts the mistake
fails here, and so does a case whose piece of source no longer exists.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType

import pytest
import torch
from correction_comparison import (
    compare_correction,
    compare_diagnostics,
    compare_high_entropy,
    compare_off_policy,
    compare_resampling,
    compare_row_weights,
)
from literal_comparison import (
    compare_advantages,
    compare_aggregate,
    compare_decoupled_gae,
    compare_gae,
    compare_kl,
    compare_kl_gradient,
    compare_logprobs,
    compare_outcomes,
    compare_penalized_gae,
    compare_process_rewards,
    compare_token_baselines,
    compare_turns,
    compare_value_gradient,
    compare_value_loss,
)
from literal_loss_comparison import CASES, compare_loss, compare_loss_gradient
from planted_errors import MISTAKES
from ragged_batches import DTYPES, Batch, fixed_batches, for_any_batch

LOSSES = tuple(dict.fromkeys(case.name for case in CASES))

# Comparison by name, with the module that it looks at.
COMPARISONS: dict[str, tuple[str, Callable[[ModuleType, Batch, torch.dtype], None]]] = {
    "advantages": ("advantages", compare_advantages),
    "gae": ("gae", compare_gae),
    "decoupled_gae": ("gae", compare_decoupled_gae),
    "penalized_gae": ("gae", compare_penalized_gae),
    "token_baselines": ("token_baseline", compare_token_baselines),
    "turns": ("turn_advantages", compare_turns),
    "process_rewards": ("implicit_rewards", compare_process_rewards),
    "outcomes": ("implicit_rewards", compare_outcomes),
    "value_loss": ("value_loss", compare_value_loss),
    "value_gradient": ("value_loss", compare_value_gradient),
    "aggregate": ("aggregate", compare_aggregate),
    "kl": ("kl", compare_kl),
    "kl_gradient": ("kl", compare_kl_gradient),
    "logprobs": ("fused_logprobs", compare_logprobs),
    "correction": ("rollout_correction", compare_correction),
    "high_entropy": ("token_masks", compare_high_entropy),
    "off_policy": ("token_masks", compare_off_policy),
    "resampling": ("resampling", compare_resampling),
    "row_weights": ("rollout_correction", compare_row_weights),
    "diagnostics": ("rollout_diagnostics", compare_diagnostics),
    **{name: ("table", partial(compare_loss, name=name)) for name in LOSSES},
    **{f"{name}_gradient": ("table", partial(compare_loss_gradient, name=name)) for name in LOSSES},
}

# In the order in which they import each other, so that each finds the changed ones before it.
ALGORITHMS = (
    "masked", "advantages", "gae", "token_baseline", "turn_advantages", "implicit_rewards",
    "value_loss", "aggregate", "kl",
)  # fmt: skip
POLICY_LOSSES = (
    "inputs", "clip", "bypass", "cispo", "covariance", "dppo", "dro", "flowrl", "geo_mean", "gpg",
    "group_variance", "gspo", "prime_rl", "sapo", "vespo", "table",
)  # fmt: skip
# After the losses' inputs.
CORRECTION = ("rollout_correction", "rollout_diagnostics", "token_masks", "resampling")
MODULES = {
    **{name: f"ppojob_trainer.algorithms.{name}" for name in ALGORITHMS},
    **{name: f"ppojob_trainer.algorithms.policy_losses.{name}" for name in POLICY_LOSSES},
    **{name: f"ppojob_trainer.algorithms.{name}" for name in CORRECTION},
    "fused_logprobs": "ppojob_trainer.engine.fused_logprobs",
}


@pytest.mark.parametrize("name", COMPARISONS)
@for_any_batch
def test_equal_to_the_literal_form(name: str, batch: Batch):
    module, compare = COMPARISONS[name]
    # A difference quotient has no digits in float32.
    for dtype in DTYPES[name.endswith("_gradient") :]:
        compare(importlib.import_module(MODULES[module]), batch, dtype)


def compare_all(module: ModuleType, name: str) -> None:
    for batch in fixed_batches():
        COMPARISONS[name][1](module, batch, torch.float64)


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_source_as_it_is_passes(name: str):
    compare_all(importlib.import_module(MODULES[COMPARISONS[name][0]]), name)


def load(
    monkeypatch: pytest.MonkeyPatch, changed: str, old: str, new: str
) -> dict[str, ModuleType]:
    """The modules, loaded afresh with one piece of one module's source replaced."""
    modules = {}
    for name, place in MODULES.items():
        source, path = source_of(place)
        if name == changed:
            assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}.py"
            source = source.replace(old, new)
        module = ModuleType(place)
        monkeypatch.setitem(sys.modules, place, module)
        exec(compiled(source, path), module.__dict__)
        modules[name] = module
    return modules


@functools.cache
def source_of(place: str) -> tuple[str, str]:
    spec = importlib.util.find_spec(place)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8"), spec.origin


@functools.cache
def compiled(source: str, path: str) -> CodeType:
    return compile(source, path, "exec")


@pytest.mark.parametrize(
    ("changed", "comparison", "mistake"),
    [
        pytest.param(*places, mistake, id=f"{places[0]}: {mistake[0]}")
        for places, mistakes in MISTAKES.items()
        for mistake in mistakes
    ],
)
def test_a_mistake_is_caught(changed: str, comparison: str, mistake, monkeypatch):
    _, old, new = mistake
    modules = load(monkeypatch, changed, old, new)
    with pytest.raises(AssertionError):
        compare_all(modules[COMPARISONS[comparison][0]], comparison)
