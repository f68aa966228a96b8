from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.engine import custom_functions
from ppojob_trainer.engine.objective import Denominators
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.errors import ConfigError, CustomCodeFailed

ROOT = Path(__file__).parents[3]
OWN = """
import torch
from beside import LOW
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.policy_losses.clip import clip
from ppojob_trainer.algorithms.policy_losses.inputs import LossOutput, PolicyLoss

def my_grpo(token_rewards, mask, lengths, groups, *, kept, by_std=True):
    columns = (token_rewards, mask, lengths, groups)
    return ADVANTAGES["grpo"](*columns, kept=kept, normalize_by_std=by_std)

def clipped(inputs, *, high):
    return clip(inputs, clip_low=LOW, clip_high=high, dual_clip=3.0)

METRICS = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl")
my_clip = PolicyLoss(clipped, METRICS, vanishes_without_advantage=True)
unnamed = PolicyLoss(clipped, ("actor/odd name",))
bare = PolicyLoss(clipped, ("step",))
forgotten = PolicyLoss(clipped, ("actor/custom/gap",))

def plain(inputs):
    inputs.advantages.mul_(2.0)
    return -inputs.advantages * inputs.logprobs

def ratio(inputs):
    return -torch.exp(inputs.logprobs - inputs.old_logprobs) * inputs.advantages

def raises(inputs):
    return plain(inputs) + torch.ones(1, 2, 3).view(7)

def nan(inputs):
    return plain(inputs) / 0.0 * 0.0

def short(inputs):
    return plain(inputs)[1:]

def detached(inputs):
    return plain(inputs).detach()

def whole(*columns):
    return columns[2]

def triple(*columns):
    return columns[0], columns[0], columns[0]
"""


@pytest.fixture
def own(tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("LOW = 0.2\n")

    def spec(loss: str = "", estimator: str = "", **arguments: object) -> AlgorithmSpec:
        source = {"path": str(tmp_path / "own.py")}
        given = {"source": source, "function": loss or estimator, "arguments": arguments}
        told = {"type": "custom", "custom": given}
        whole = told if estimator else {"type": "grpo", "policyLoss": told}
        return AlgorithmSpec.model_validate({**whole, "promptsPerStep": 3, "samplesPerPrompt": 3})

    return spec


def columns_of(rows):
    rewards = torch.randn(rows.num_tokens, generator=torch.Generator().manual_seed(1))
    return rewards, rows.mask, rows.lengths, rows.row_groups


def measured(spec: AlgorithmSpec, rows):
    logprobs = (rows.rollout_logprobs * 1.3).requires_grad_()
    entropy = torch.zeros(rows.num_tokens)
    parts = PolicyObjective.of(spec)((logprobs, entropy), rows, Denominators.of(rows))
    return parts, torch.autograd.grad(parts.loss, logprobs)[0]


def test_a_copy_has_the_bits_of_the_table(make_rows, own) -> None:
    rows = make_rows(old=True)
    columns, kept = columns_of(rows), rows.mask.clone()
    kept[:4] = False
    estimator = own(estimator="my_grpo", by_std=False).custom
    mine = custom_functions.estimator_of(estimator)(*columns, kept=kept, by_std=False)
    theirs = ADVANTAGES["grpo"](*columns, kept=kept, normalize_by_std=False)
    assert mine.advantages.abs().sum() > 0
    assert torch.equal(mine.advantages, theirs.advantages)
    loss = own("my_clip", high=0.2)
    built_in = AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3)
    (mine, gradient), (theirs, expected) = measured(loss, rows), measured(built_in, rows)
    assert torch.equal(gradient, expected)
    assert (mine.terms, mine.token_sums) == (theirs.terms, theirs.token_sums)
    objectives = PolicyObjective.of(loss), PolicyObjective.of(built_in)
    assert objectives[0].token_names == objectives[1].token_names
    first, second = (one.rows_with_gradient(rows) for one in objectives)
    assert torch.equal(first, second)


def test_a_plain_loss_keeps_rows_without_advantage_and_what_it_reads(make_rows, own) -> None:
    rows = make_rows()
    rows.mask[:] = True
    before = rows.advantages.clone()
    measured(own("plain"), rows)
    assert torch.equal(rows.advantages, before)
    rows.advantages[:] = 0.0
    assert len(PolicyObjective.of(own("plain")).rows_with_gradient(rows)) == len(rows.lengths)
    assert "actor/ppo_kl" in PolicyObjective.of(own("plain")).token_names


def test_extremes_that_are_not_trained_leave_no_gradient(make_rows, own) -> None:
    rows = make_rows(old=True)
    rows.mask[0], rows.mask[1:] = False, True
    rows.old_logprobs[0] = -2_000.0
    _, gradient = measured(own("ratio"), rows)
    assert gradient[0] == 0.0
    assert gradient[1:].isfinite().all()


WRONG = {
    "raises": "RuntimeError: shape '[7]' is invalid",
    "nan": "loss nan at token",
    "short": "loss (",
    "detached": "a loss without a gradient",
    "forgotten": "metrics actor/pg_clipfrac",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_is_told_by_its_line(make_rows, own, name: str) -> None:
    arguments = {"high": 0.2} if name == "forgotten" else {}
    with pytest.raises(CustomCodeFailed) as told:
        measured(own(name, **arguments), make_rows())
    line = str(told.value)
    assert line.startswith(f"spec.algorithm.policyLoss.custom: got {WRONG[name]}"), line
    head = "def clipped(inputs, *, high):" if arguments else f"def {name}(inputs):"
    number = 1 + OWN.splitlines().index(head)
    assert f"own.py:{number} {name}" in line
    assert "\n" not in line


@pytest.mark.parametrize(("name", "got"), [("whole", "advantages ("), ("triple", "a tuple of 3")])
def test_a_wrong_estimator_is_told(make_rows, own, name: str, got: str) -> None:
    rows = make_rows()
    estimate = custom_functions.estimator_of(own(estimator=name).custom)
    with pytest.raises(CustomCodeFailed) as told:
        estimate(*columns_of(rows), kept=rows.mask)
    assert str(told.value).startswith(f"spec.algorithm.custom: got {got}")


def test_what_cannot_be_used_is_refused_in_a_line(own) -> None:
    def refusal(spec: AlgorithmSpec) -> str:
        with pytest.raises(ConfigError) as told:
            custom_functions.check(spec)
        (line,) = told.value.problems
        return line.removeprefix("spec.algorithm.")

    missing = own("plain").policy_loss.custom
    gone = missing.model_copy(update={"source": missing.source.model_copy(update={"path": "no"})})
    loss = own("plain").policy_loss.model_copy(update={"custom": gone})
    told = refusal(own("plain").model_copy(update={"policy_loss": loss}))
    assert told == "policyLoss.custom.source.path: got no: no such file; a Python file"
    assert refusal(own("plane")).startswith("policyLoss.custom.function: got plane: ")
    assert refusal(own("plain", eta=1)).startswith("policyLoss.custom.arguments: got 'eta': ")
    assert refusal(own(estimator="plain")).startswith("custom.arguments: got no arguments: ")
    assert refusal(own("unnamed", high=1)).startswith("policyLoss.custom.function: got unnamed ")
    assert refusal(own("bare", high=1)).startswith("policyLoss.custom.function: got bare ")
    assert refusal(own("plain", inputs=1)).startswith("policyLoss.custom.arguments: got 'inputs': ")


def test_the_example_is_sppo(make_rows) -> None:
    """Against literal loops over responses."""
    source = {"path": str(ROOT / "examples" / "algorithms" / "sppo.py")}
    given = {"source": source, "function": "win_rate", "arguments": {"beta": 2.0}}
    loss = {"source": source, "function": "sppo", "arguments": {"eta": 3.0}}
    told = {"type": "custom", "custom": given, "policyLoss": {"type": "custom", "custom": loss}}
    batch = {"promptsPerStep": 3, "lossAggregation": "sequence_mean_token_mean"}
    spec, rows = AlgorithmSpec.model_validate({**told, **batch}), make_rows(old=True)
    rows.mask[: int(rows.lengths[0])] = False  # a response of which nothing is trained
    rewards, *others = columns_of(rows)
    estimate = custom_functions.estimator_of(spec.custom)
    kept = rows.mask & (torch.arange(rows.num_tokens) % 5 > 0)
    left = estimate(rewards, *others, kept=kept, beta=2.0).advantages
    advantages = estimate(rewards, *others, kept=rows.mask, beta=2.0).advantages
    assert torch.equal(left, advantages.where(kept, 0.0))
    parts = [column.split(rows.lengths.tolist()) for column in (rewards, rows.mask, advantages)]
    scores = [float(r[m].double().sum()) for r, m in zip(*parts[:2], strict=True)]
    ratios = (rows.rollout_logprobs * 1.3 - rows.old_logprobs).split(rows.lengths.tolist())
    losses = []
    for row, score in enumerate(scores):
        others = zip(scores, rows.row_groups, parts[1], strict=True)
        peers = [s for s, g, m in others if g == rows.row_groups[row] and m.any()]
        wins = [torch.sigmoid(torch.tensor(2.0 * (score - peer))) for peer in peers]
        expected = float(sum(wins)) / len(peers) - 0.5
        mask = parts[1][row]
        torch.testing.assert_close(parts[2][row][mask], torch.full((int(mask.sum()),), expected))
        if mask.any():
            losses.append((float(ratios[row][mask].sum()) - 3.0 * expected) ** 2)
    found, _ = measured(spec, replace(rows, advantages=advantages))
    assert found.terms["actor/pg_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
