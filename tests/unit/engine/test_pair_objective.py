"""Losses of pairs against the definitions: in float64, pair by pair, by transformers alone."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
import torch
from padded_reference import gradients, padded_logprobs, relative_difference
from torch.nn import functional as F
from transformers import LlamaForSequenceClassification

from ppojob_api.v1alpha1.algorithm import DpoSpec, RewardModelTrainingSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import Head, PolicyHead, ValueHead
from ppojob_trainer.engine.objective import Denominators
from ppojob_trainer.engine.pair_objective import BradleyTerryLoss, DpoLoss, PairObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.load import load_scoring_model
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.demonstrations import Demonstration, Part
from ppojob_trainer.workers.row_store import demonstrated_rows

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
    "with cross-entropy": {"sftWeight": 0.7},
}


@pytest.fixture
def experience() -> Experience:
    demonstrations = [
        Demonstration(number, prompt, [[Part(*part) for part in one] for one in answers])
        for number, (prompt, answers) in enumerate(PAIRS)
    ]
    return demonstrated_rows(0, demonstrations).experience


def literal_dpo(
    policy: list[torch.Tensor], reference: list[torch.Tensor], spec: DpoSpec
) -> tuple[torch.Tensor, dict[str, float]]:
    """As TRL's `dpo_loss` has it, pair by pair, by the log-probabilities of rows."""
    losses, told = [], {"chosen": 0.0, "rejected": 0.0, "margins": 0.0, "accuracies": 0.0}
    for pair in range(len(policy) // 2):
        chosen, rejected = policy[2 * pair], policy[2 * pair + 1]
        scale = (lambda row: row.mean()) if spec.loss_type == "ipo" else (lambda row: row.sum())
        chosen_ratio = scale(chosen) - scale(reference[2 * pair])
        rejected_ratio = scale(rejected) - scale(reference[2 * pair + 1])
        logits = chosen_ratio - rejected_ratio
        if spec.loss_type == "sigmoid":
            loss = (
                -F.logsigmoid(spec.beta * logits) * (1 - spec.label_smoothing)
                - F.logsigmoid(-spec.beta * logits) * spec.label_smoothing
            )
        elif spec.loss_type == "hinge":
            loss = torch.relu(1 - spec.beta * logits)
        else:
            loss = (logits - 1 / (2 * spec.beta)) ** 2
        losses.append(loss - spec.sft_weight * chosen.mean())
        told["chosen"] += spec.beta * chosen_ratio.item()
        told["rejected"] += spec.beta * rejected_ratio.item()
        told["margins"] += spec.beta * logits.item()
        told["accuracies"] += float(logits.item() > 0)
    count = len(losses)
    return torch.stack(losses).mean(), {name: total / count for name, total in told.items()}


def trained(model: tiny_models.PreTrainedModel, rows: Experience) -> list[torch.Tensor]:
    """The log-probabilities of the trained tokens of each row."""
    return by_row(padded_logprobs(model, rows)[0], rows)


def by_row(column: torch.Tensor, rows: Experience) -> list[torch.Tensor]:
    """The trained tokens of each row."""
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
def test_dpo_equals_the_literal_reference(
    make_model: MakeModel, experience: Experience, name: str, training: dict[str, object]
) -> None:
    spec = DpoSpec.model_validate(SPECS[name])
    ours, theirs = (make_model(dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        reference, _ = padded_logprobs(make_model(dtype=torch.float64, seed=1), experience)
    experience.ref_logprobs = reference
    objective = PairObjective(DpoLoss(spec))
    measured = engine(ours, **training).update(experience, objective)
    held_out = objective.measured(engine(make_model()).predict(experience), experience)
    loss, told = literal_dpo(trained(theirs, experience), by_row(reference, experience), spec)
    # Not to the last digit: rotary embeddings are float32 in models of float64, too.
    assert measured.values["train/loss"] == pytest.approx(loss.item(), rel=1e-6)
    for figure, value in told.items():
        assert measured.values[f"train/rewards/{figure}"] == pytest.approx(value, rel=1e-5)
        mean = held_out.token_sums[f"val/rewards/{figure}"] / held_out.tokens
        assert mean == pytest.approx(value, rel=1e-4)
    found = {key: weight.grad for key, weight in ours.named_parameters()}
    assert relative_difference(found, gradients(theirs, loss)) < 1e-5


def test_numbers_of_the_papers_by_hand() -> None:
    """Ratios of 3 and 1 over two tokens, and one."""
    rows = Experience(
        prompts=[torch.tensor([1])],
        row_groups=torch.tensor([0, 0]),
        response_tokens=torch.zeros(3, dtype=torch.int64),
        lengths=torch.tensor([2, 1]),
        mask=torch.ones(3, dtype=torch.bool),
        rollout_logprobs=torch.zeros(3),
        ref_logprobs=torch.tensor([-3.0, -2.0, -4.0]),
    )
    logprobs = torch.tensor([-1.0, -1.0, -3.0])
    expected = {
        "sigmoid": math.log(1 + math.exp(-0.1 * (3 - 1))),
        "hinge": 1 - 0.1 * (3 - 1),
        "ipo": ((3 / 2 - 1) - 1 / (2 * 0.1)) ** 2,
    }
    for name, value in expected.items():
        losses, _ = DpoLoss(DpoSpec(loss_type=name))(logprobs, rows)
        assert losses.item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_a_reward_is_the_logit_of_transformers_behind_the_whole_text(
    experience: Experience, tmp_path: Path, budget: int
) -> None:
    """A token that nobody reads stands behind each text, and is the only trained one."""
    sizes = {"vocab_size": 97, **tiny_models.TWO_LAYERS, "num_labels": 1, "pad_token_id": 0}
    model = tiny_models.save_model(tmp_path, LlamaForSequenceClassification, **sizes).double()
    model.config.use_cache = False
    texts = [[[id_ for part, _ in one for id_ in part] for one in pair] for _, pair in PAIRS]
    marked = [
        Demonstration(n, prompt, [[Part(text, False), Part([0], True)] for text in texts[n]])
        for n, (prompt, _) in enumerate(PAIRS)
    ]
    rows = demonstrated_rows(0, marked).experience
    ours = load_scoring_model(tmp_path).double()
    loss = PairObjective(BradleyTerryLoss(RewardModelTrainingSpec(centering=0.3)))
    learner = engine(ours, ValueHead(), micro_batch_tokens=budget)
    measured = learner.update(rows, loss)
    total, scores = torch.zeros((), dtype=torch.float64), list[float]()
    for (prompt, _), (good, bad) in zip(PAIRS, texts, strict=True):
        chosen, rejected = (
            model(torch.tensor([prompt + text])).logits[0, 0] for text in (good, bad)
        )
        total = total - torch.log(torch.sigmoid(chosen - rejected))
        total = total + 0.3 * (chosen + rejected) ** 2
        scores += [chosen.item(), rejected.item()]
    literal = total / len(PAIRS)
    assert measured.values["train/loss"] == pytest.approx(literal.item(), rel=1e-6)
    assert measured.values["train/rewards/chosen"] == pytest.approx(sum(scores[0::2]) / 3, rel=1e-6)
    found = {key: weight.grad for key, weight in ours.named_parameters()}
    assert relative_difference(found, gradients(model, literal)) < 1e-5


def test_a_language_model_gets_a_head_of_zeros(tmp_path: Path) -> None:
    tiny_models.save_model(tmp_path)
    head = load_scoring_model(tmp_path).score.weight
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
