"""Losses of pairs against the definitions: in float64, pair by pair, by transformers alone."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import tiny_models
import torch
from padded_reference import assert_gradients, padded_logits, padded_logprobs
from transformers import LlamaForSequenceClassification

from ppojob_api.v1alpha1.preferences import PAIR_LOSSES as PAIR_LOSS_NEEDS
from ppojob_api.v1alpha1.preferences import DpoLossType, DpoSpec, RewardModelTrainingSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.algorithms.pair_losses import PAIR_LOSSES
from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import Head, PolicyHead, ValueHead
from ppojob_trainer.engine.objective import Denominators
from ppojob_trainer.engine.pair_objective import (
    BradleyTerryLoss,
    DpoLoss,
    DrawnPairObjective,
    PairObjective,
)
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.kinds import SCORER
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.demonstrations import Demonstration
from ppojob_trainer.workers.row_store import demonstration_rows

MakeModel = Callable[..., tiny_models.PreTrainedModel]
PAIRS = [
    ([5, 6, 7], [[([8, 9], True)], [([10, 11, 12, 13], True)]]),
    ([5], [[([20], True), ([21, 22], False), ([23, 24], True)], [([25], True)]]),
    ([30, 31, 32, 33, 34, 35], [[([36, 37, 38], True)], [([36, 37, 39, 40], True)]]),
]
"""Prompts, and of each the chosen and the rejected answer by who wrote them."""
SPECS = {
    "sigmoid": {},
    "conservative": {"beta": 0.5, "labelSmoothing": 0.2},
    "ipo": {"lossType": "ipo", "beta": 0.3},
    "hinge": {"lossType": "hinge", "beta": 0.2},
    "robust": {"lossType": "robust", "beta": 0.5, "labelSmoothing": 0.2},
    "exo_pair": {"lossType": "exo_pair", "beta": 0.5},
    "simpo": {"lossType": "simpo", "beta": 2.0, "targetMargin": 1.0, "labelSmoothing": 0.1},
    "cpo": {"lossType": "cpo"},
    "cpo alone": {"lossType": "cpo", "sftWeight": 0.0},
    "orpo": {"lossType": "orpo", "beta": 0.3},
    **{
        name: {"lossType": name, "beta": 0.4}
        for name in ("sigmoid_norm", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down")
    },
    "with cross-entropy": {"sftWeight": 0.7},
    "discopop": {"lossType": "discopop", "beta": 0.4, "discopopTau": 0.3},
    "length-desensitised": {"beta": 0.4, "tailWeight": 0.3, "sftWeight": 0.7},
    "length-desensitised means": {"lossType": "simpo", "targetMargin": 1.0, "tailWeight": 0.3},
    "forward KL": {"beta": 0.4, "divergence": "forward_kl"},
    "Jensen-Shannon": {"beta": 0.4, "divergence": "jsd", "tailWeight": 0.0},
    "alpha": {"lossType": "hinge", "divergence": "alpha"},
    "alpha of means": {"lossType": "ipo", "divergence": "alpha", "divergenceAlpha": 0.8},
    "weighted": {"beta": 0.4, "weightByPolicy": True, "sftWeight": 0.7},
    "mixed": {"lossWeights": {"ipo": 0.5, "bco_pair": 0.2, "sigmoid": 0.8}, "sftWeight": 1.0},
    "mixed without reference": {"lossWeights": {"orpo": 0.2, "cpo": 0.8}},
    "aot": {"lossType": "aot", "beta": 0.4, "labelSmoothing": 0.1, "tailWeight": 0.7},
    "aot_unpaired": {"lossType": "aot_unpaired", "beta": 0.4, "sftWeight": 0.7},
}
MEANS = {"ipo", "sigmoid_norm", "simpo", "orpo"}
WITHOUT_REFERENCE = {"cpo", "simpo", "orpo"}

OF_TRL = {
    "sigmoid": 0.529260449,
    "hinge": 0.640000000,
    "ipo": 0.217777778,
    "exo_pair": 0.331125094,
    "nca_pair": 1.324585127,
    "bco_pair": 1.251871092,
    "robust": 0.484260449,
    "sppo_hard": 5.655555556,
    "apo_zero": 0.913544734,
    "apo_down": 0.858651656,
    "discopop": 0.697550683,
    "aot": 0.565260449,
    "aot_unpaired": 0.565260449,
    "sigmoid_norm": 0.529260449,
    "cpo": 0.565260449,
    "simpo": 0.751595182,
    "orpo": 0.049219929,
}
"""What the trainers of TRL (f2cd57710) give for log ratios of -0.7 and -1.9, with a beta of 0.3.

A share of 0.1 of the pairs is the wrong way round with those who ask for it; TRL's DPO does not.
"""


def given(parts: Iterable[tuple[Sequence[int], bool]]) -> tuple[AnswerPart, ...]:
    return tuple(AnswerPart(tuple(tokens), is_trained) for tokens, is_trained in parts)


@pytest.fixture
def experience() -> Experience:
    demonstrations = [
        Demonstration(number, prompt, tuple(map(given, answers)))
        for number, (prompt, answers) in enumerate(PAIRS)
    ]
    return demonstration_rows(0, demonstrations).experience


def literal_dpo(
    policy: list[torch.Tensor],
    reference: list[torch.Tensor],
    squares: list[torch.Tensor],
    spec: DpoSpec,
) -> tuple[torch.Tensor, dict[str, float]]:
    """As the papers have it, pair by pair, by the log-probabilities of rows.

    `squares` are the squared probabilities of all tokens, summed up, before each token of a row.
    """
    losses, told = [], {"chosen": 0.0, "rejected": 0.0, "margins": 0.0, "accuracies": 0.0}
    weights = spec.loss_weights or {spec.loss_type: 1.0}
    ratios = likelihoods(policy, spec)
    if not set(weights) <= WITHOUT_REFERENCE:
        ratios = ratios - likelihoods(reference, spec)
    lengths = torch.tensor([len(row) for row in policy])
    scores = slope(spec.divergence, spec.divergence_alpha or 0.5, ratios)
    ratios = ratios / lengths if set(weights) <= MEANS else ratios
    sft_weight = spec.sft_weight
    if sft_weight is None:
        sft_weight = float(bool(set(weights) & {"cpo", "orpo"}))
    for c, r in zip(range(0, len(policy), 2), range(1, len(policy), 2), strict=True):
        loss = torch.zeros(())
        for name, weight in weights.items():
            each = scores / lengths if name in MEANS else scores
            loss = loss + weight * LITERAL[name](each[c], each[r], spec.beta, spec.label_smoothing)
        if spec.weight_by_policy:
            for n in (c, r):
                loss = loss * (policy[n].detach().exp() / squares[n]).prod() ** (1 / lengths[n])
        losses.append(loss - sft_weight * policy[c].mean())
        told["chosen"] += spec.beta * ratios[c].item()
        told["rejected"] += spec.beta * ratios[r].item()
        told["margins"] += spec.beta * (ratios[c] - ratios[r]).item()
        told["accuracies"] += float(ratios[c].item() > ratios[r].item())
    loss = torch.stack(losses).mean() + literal_aot(policy, reference, spec)
    return loss, {name: total / len(losses) for name, total in told.items()}


def likelihoods(rows: list[torch.Tensor], spec: DpoSpec) -> torch.Tensor:
    """(rows,) log-probabilities of answers; of LD-DPO the tail of the longer one counts less."""
    found = []
    for number, row in enumerate(rows):
        shared = min(len(row), len(rows[number ^ 1]))
        found.append(row[:shared].sum() + spec.tail_weight * row[shared:].sum())
    return torch.stack(found)


def literal_aot(
    policy: list[torch.Tensor], reference: list[torch.Tensor], spec: DpoSpec
) -> torch.Tensor:
    """AOT of all pairs: quantile by quantile; 0 for another loss."""
    here, there = (likelihoods(rows, spec) for rows in (policy, reference))
    sides = {
        "aot": (here[0::2] - here[1::2], there[0::2] - there[1::2]),
        "aot_unpaired": ((here - there)[0::2], (here - there)[1::2]),
    }.get(spec.loss_type)
    if sides is None:
        return torch.zeros(())
    upper, lower = (side.sort().values for side in sides)
    return of_margin(spec.beta * (upper - lower), spec.label_smoothing).mean()


def slope(divergence: str, alpha: float, log_ratio: torch.Tensor) -> torch.Tensor:
    """f'(u) of f-DPO, from the f of its table 1, whose alpha is 1 less ours; plus a constant."""
    if divergence == "reverse_kl":
        return log_ratio
    u, a = log_ratio.exp(), 1 - alpha
    f = {
        "forward_kl": lambda: -u.log(),
        "jsd": lambda: u * u.log() - (u + 1) * ((u + 1) / 2).log(),
        "alpha": lambda: (u ** (1 - a) - (1 - a) * u - a) / (a * (a - 1)),
    }[divergence]()
    return torch.autograd.grad(f.sum(), u, create_graph=True)[0]


def prefers(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


def of_margin(margin: torch.Tensor, e: float) -> torch.Tensor:
    """Of a pair that is the wrong way round with probability e."""
    return -(1 - e) * torch.log(prefers(margin)) - e * torch.log(1 - prefers(margin))


def to_the_pair(win: torch.Tensor, e: float) -> torch.Tensor:
    """The reverse KL to what a pair says that is the wrong way round with probability e."""
    return win * torch.log(win / (1 - e)) + (1 - win) * torch.log((1 - win) / e)


def is_good(reward: torch.Tensor) -> torch.Tensor:
    """What a classifier of answers pays for a good one."""
    return -torch.log(prefers(reward))


def is_bad(reward: torch.Tensor) -> torch.Tensor:
    """What it pays for a bad one."""
    return -torch.log(1 - prefers(reward))


def modulated(margin: torch.Tensor, tau: float) -> torch.Tensor:
    """Logistic where the pair is the wrong way round, else exponential."""
    share = prefers(margin / tau)
    return (1 - share) * of_margin(margin, 0) + share * torch.exp(-margin)


def odds(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) / (1 - torch.exp(x))


LITERAL: dict[str, Callable[..., torch.Tensor | float]] = {
    "sigmoid": lambda c, r, b, e: of_margin(b * (c - r), e),
    "sigmoid_norm": lambda c, r, b, e: of_margin(b * (c - r), 0),
    "cpo": lambda c, r, b, e: of_margin(b * (c - r), e),
    "simpo": lambda c, r, b, e: of_margin(b * c - b * r - 1.0, e),
    "hinge": lambda c, r, b, e: torch.relu(1 - b * (c - r)),
    "ipo": lambda c, r, b, e: (c - r - 1 / (2 * b)) ** 2,
    "robust": lambda c, r, b, e: (
        ((1 - e) * of_margin(b * (c - r), 0) - e * of_margin(b * (r - c), 0)) / (1 - 2 * e)
    ),
    "exo_pair": lambda c, r, b, e: to_the_pair(prefers(b * (c - r)), e or 1e-3),
    "bco_pair": lambda c, r, b, e: is_good(b * c) + is_bad(b * r),
    "nca_pair": lambda c, r, b, e: is_good(b * c) + is_bad(b * c) / 2 + is_bad(b * r) / 2,
    "sppo_hard": lambda c, r, b, e: (c - (1 - 0.5) / b) ** 2 + (r - (0 - 0.5) / b) ** 2,
    "apo_zero": lambda c, r, b, e: 1 - prefers(b * c) + prefers(b * r),
    "apo_down": lambda c, r, b, e: prefers(b * c) + 1 - prefers(b * (c - r)),
    "discopop": lambda c, r, b, e: modulated(b * (c - r), 0.3),
    "aot": lambda c, r, b, e: 0.0,  # not of one pair: `literal_aot`
    "aot_unpaired": lambda c, r, b, e: 0.0,
    "orpo": lambda c, r, b, e: b * of_margin(torch.log(odds(c) / odds(r)), 0),
}
"""A loss of one pair, by probabilities and without anything that keeps digits."""


def trained(
    model: tiny_models.PreTrainedModel, rows: Experience
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of the trained tokens of each row the log-probabilities, and all squared ones summed up."""
    logits = padded_logits(model, rows)
    squares = [(said.softmax(-1) ** 2).sum(-1).detach() for said, _ in logits]
    return by_row(padded_logprobs(model, rows)[0], rows), by_row(torch.cat(squares), rows)


def by_row(column: torch.Tensor, rows: Experience) -> list[torch.Tensor]:
    lengths = rows.lengths.tolist()
    return [
        row[mask] for row, mask in zip(column.split(lengths), rows.mask.split(lengths), strict=True)
    ]


def engine(
    model: tiny_models.PreTrainedModel, head: Head | None = None, **training: object
) -> TrainEngine:
    spec = TrainingSpec.model_validate({"autocast": "none", **training})
    head = head or PolicyHead(LogprobSettings(1.0, spec.logprob_chunk_tokens))
    return TrainEngine(model, head, spec, OptimizerSpec(gradient_clip=0.0), 1)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "training", [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 16, "share_prompts": False}, {}]
)
def test_dpo_equals_the_literal_reference(make_model, experience, name, training):
    spec = DpoSpec.model_validate(SPECS[name])
    ours, theirs = (make_model(dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        reference, _ = padded_logprobs(make_model(dtype=torch.float64, seed=1), experience)
    experience.ref_logprobs = reference = reference.float()
    settings = LogprobSettings(1.0, 16, squares=spec.weight_by_policy)
    predicting = engine(make_model(), PolicyHead(settings), **training)
    rows, objective = PairObjective(DpoLoss(spec)).of_batch(experience, predicting)
    held_out = objective.measured(predicting.predict(rows), rows)
    measured = engine(ours, PolicyHead(settings), **training).update(rows, objective)
    policy, squares = trained(theirs, experience)
    loss, told = literal_dpo(policy, by_row(reference, experience), squares, spec)
    # Not to the last digit: rotary embeddings are float32 in models of float64, too.
    assert measured.values["train/loss"] == pytest.approx(loss.item(), rel=1e-6)
    for figure, value in told.items():
        assert measured.values[f"train/rewards/{figure}"] == pytest.approx(value, rel=1e-5)
        mean = held_out.token_sums[f"val/rewards/{figure}"] / held_out.tokens
        assert mean == pytest.approx(value, rel=1e-4)
    assert_gradients(ours, theirs, loss, 1e-5)


@pytest.mark.parametrize("name", OF_TRL)
def test_numbers_are_those_of_trl(name: DpoLossType) -> None:
    needs, beta = PAIR_LOSS_NEEDS[name], 0.3
    chosen, rejected = torch.tensor([[-0.7], [-1.9]], dtype=torch.float64)
    is_asked = needs.has_smoothing and name != "sigmoid"
    options = {"label_smoothing": 0.1} if is_asked else {}
    loss = PAIR_LOSSES[name](chosen, rejected, beta=beta, **options)
    assert loss.item() == pytest.approx(OF_TRL[name], rel=1e-6)
    assert set(OF_TRL) == set(PAIR_LOSSES) == set(PAIR_LOSS_NEEDS)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_a_reward_is_the_logit_of_transformers_behind_the_whole_text(experience, tmp_path, budget):
    """A token that nobody reads stands behind each text, and is the only trained one."""
    sizes = {"vocab_size": 97, **tiny_models.TWO_LAYERS, "num_labels": 1, "pad_token_id": 0}
    model = tiny_models.save_model(tmp_path, LlamaForSequenceClassification, **sizes).double()
    model.config.use_cache = False
    texts = [[[id_ for part, _ in one for id_ in part] for one in pair] for _, pair in PAIRS]
    marked = [
        Demonstration(
            n, prompt, tuple(given([(text, False), ([0], True)]) for text in texts[n]), n / 2
        )
        for n, (prompt, _) in enumerate(PAIRS)
    ]
    rows = demonstration_rows(0, marked, has_rewards=True).experience
    ours = load_model(tmp_path, kind=SCORER).double()
    loss = PairObjective(BradleyTerryLoss(RewardModelTrainingSpec(centering=0.3)))
    learner = engine(ours, ValueHead(), micro_batch_tokens=budget)
    measured = learner.update(rows, loss)
    total, scores = torch.zeros((), dtype=torch.float64), list[float]()
    for n, ((prompt, _), (good, bad)) in enumerate(zip(PAIRS, texts, strict=True)):
        chosen, rejected = (
            model(torch.tensor([prompt + text])).logits[0, 0] for text in (good, bad)
        )
        total = total - torch.log(torch.sigmoid(chosen - rejected - n / 2))
        total = total + 0.3 * (chosen + rejected) ** 2
        scores += [chosen.item(), rejected.item()]
    literal = total / len(PAIRS)
    assert measured.values["train/loss"] == pytest.approx(literal.item(), rel=1e-6)
    assert measured.values["train/rewards/chosen"] == pytest.approx(sum(scores[0::2]) / 3, rel=1e-6)
    assert_gradients(ours, model, literal, 1e-5)


def test_pairs_that_were_drawn_have_the_loss_of_given_ones(make_rows: Callable[..., Experience]):
    rows = make_rows(groups=3, samples=4)
    rows.mask = torch.ones_like(rows.mask)
    logprobs = torch.randn(rows.num_tokens)
    chosen, rejected = [2, 4], [0, 7]  # of the first two groups; the third has no pair
    signs = torch.zeros(rows.num_rows)
    signs[chosen], signs[rejected] = 1.0, -1.0
    rows.advantages = signs.repeat_interleave(rows.lengths)
    in_pairs = torch.tensor([row for pair in zip(chosen, rejected, strict=True) for row in pair])
    given = rows.select(in_pairs)
    loss = DpoLoss(DpoSpec(sft_weight=0.3, tail_weight=0.5, weight_by_policy=True))
    place, squares = rows.token_index(in_pairs), torch.rand(rows.num_tokens)
    outputs = (logprobs[place], squares[place])
    wanted = PairObjective(loss)(outputs, given, Denominators.of(given))
    rows.mask &= rows.advantages != 0
    drawn = DrawnPairObjective(loss)
    assert drawn.rows_with_gradient(rows).tolist() == sorted(chosen + rejected)
    some = drawn.rows_with_gradient(rows)
    place = rows.token_index(some)
    outputs = (logprobs[place], torch.ones(len(place)), squares[place])
    found = drawn(outputs, rows.select(some), Denominators.of(rows))
    torch.testing.assert_close(found.loss, wanted.loss)
    for ours, theirs in zip(drawn.pair_names, PairObjective.term_names, strict=True):
        assert found.token_sums[ours] / found.counts[ours] == pytest.approx(wanted.terms[theirs])
    assert found.token_sums["actor/entropy"] == found.tokens


def test_a_language_model_gets_a_head_of_zeros(tmp_path: Path) -> None:
    tiny_models.save_model(tmp_path)
    head = load_model(tmp_path, kind=SCORER).score.weight
    assert head.requires_grad
    assert not head.any()


def test_parts_of_a_mini_batch_add_up(make_rows: Callable[..., Experience]) -> None:
    rows = make_rows(groups=4, samples=2)
    rows.mask = torch.ones_like(rows.mask)
    logprobs = torch.randn(rows.num_tokens, requires_grad=True)
    objective, denominators = PairObjective(DpoLoss(DpoSpec())), Denominators.of(rows)
    whole = objective((logprobs,), rows, denominators)
    parts = []
    for cut in (torch.arange(0, 6), torch.arange(6, 8)):
        own = (logprobs[rows.token_index(cut)],)
        parts.append(objective(own, rows.select(cut), denominators))
    for name in objective.term_names:
        found = sum(part.terms[name] for part in parts)
        assert found == pytest.approx(whole.terms[name], rel=1e-5)
