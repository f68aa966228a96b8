"""Supervised fine-tuning against the definition: a cross-entropy in float64, row by row."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
import torch
from padded_reference import assert_gradients, padded_logprobs
from torch.nn import functional as F
from turn_templates import ChatInProcess

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.objective import Aggregation, SftObjective, SupervisedObjective
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import Supervised, TrainEngine
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.demonstrations import Demonstration
from ppojob_trainer.workers.row_store import demonstration_rows

HEAD, END = "<|im_start|>assistant\n", "<|im_end|>"
ROWS: list[list[tuple[str, bool]]] = [
    [("<|im_start|>user\n1+1<|im_end|>\n" + HEAD, False), ("2" + END, True)],
    [
        ("<|im_start|>system\nbe nice<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n" + HEAD, False),
        ("hello" + END, True),
        ("\n<|im_start|>user\n2+3<|im_end|>\n" + HEAD, False),
        ("5" + END, True),
        ("\n<|im_start|>user\nand 4+4<|im_end|>\n" + HEAD, False),
        ("no idea" + END, False),  # given, by `loss_mask: 0`
        ("\n<|im_start|>user\nwhy<|im_end|>\n" + HEAD, False),
        ("because" + END, True),
    ],
    [("<|im_start|>user\nand<|im_end|>\n" + HEAD, False), (END, True)],
]
"""Rows of tokens by hand, and which of them are trained."""

MakeModel = Callable[..., tiny_models.PreTrainedModel]


@pytest.fixture
def chat(tmp_path: Path) -> ChatTokenizer:
    tiny_models.save_tokenizer(tmp_path)
    return ChatInProcess(tmp_path)


@pytest.fixture
def experience(chat: ChatTokenizer) -> Experience:
    demonstrations = []
    for number, ((prompt, _), *answer) in enumerate(ROWS):
        parts = (AnswerPart(tuple(chat.encode(text)), is_trained) for text, is_trained in answer)
        demonstrations.append(Demonstration(number, chat.encode(prompt), (tuple(parts),)))
    return demonstration_rows(0, demonstrations).experience


def literal_loss(
    model: tiny_models.PreTrainedModel, chat: ChatTokenizer, mode: str
) -> torch.Tensor:
    """Each row whole, by transformers' own attention; position t predicts token t + 1."""
    model.set_attn_implementation("eager")
    sums, counts = [], []
    for row in ROWS:
        ids, labels = list[int](), list[int]()
        for text, is_trained in row:
            tokens = chat.encode(text)
            ids += tokens
            labels += tokens if is_trained else [-100] * len(tokens)
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        shifted = torch.tensor(labels[1:])
        sums.append(F.cross_entropy(logits[:-1], shifted, ignore_index=-100, reduction="sum"))
        counts.append(int((shifted != -100).sum()))
    if mode == "token_mean":
        return sum(sums, torch.zeros(())) / sum(counts)
    assert mode == "sequence_mean_token_mean"
    of_rows = [total / count for total, count in zip(sums, counts, strict=True)]
    return sum(of_rows, torch.zeros(())) / len(of_rows)


def engine(
    model: tiny_models.PreTrainedModel, temperature: float = 1.0, **training: object
) -> TrainEngine:
    spec = TrainingSpec.model_validate({"autocast": "none", "logprob_chunk_tokens": 8, **training})
    head = PolicyHead(LogprobSettings(temperature, spec.logprob_chunk_tokens, "value"))
    return TrainEngine(model, head, spec, OptimizerSpec(gradient_clip=0.0), 1)


def objective(mode: str) -> SftObjective:
    spec = AlgorithmSpec(type="sft", prompts_per_step=3, loss_aggregation=mode)
    return SftObjective(Aggregation.of(spec, 99))


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean_token_mean"])
@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_loss_and_gradient_equal_the_literal_reference(make_model, experience, chat, mode, budget):
    ours, theirs = (make_model(dtype=torch.float64, vocab_size=120) for _ in range(2))
    measured = engine(ours, micro_batch_tokens=budget).update(experience, objective(mode))
    loss = literal_loss(theirs, chat, mode)
    # Not to the last digit: rotary embeddings are float32 in models of float64, too.
    assert measured.values["train/loss"] == pytest.approx(loss.item(), rel=1e-7)
    assert_gradients(ours, theirs, loss, 1e-6)


def test_in_float32_too(make_model: MakeModel, experience: Experience, chat: ChatTokenizer) -> None:
    ours, exact = (
        make_model(dtype=dtype, vocab_size=120) for dtype in (torch.float32, torch.float64)
    )
    measured = engine(ours).update(experience, objective("token_mean"))
    loss = literal_loss(exact, chat, "token_mean")
    assert measured.values["train/loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert_gradients(ours, exact, loss, 5e-6)


def test_the_reference_notices_a_shift_and_a_wrong_mask(make_model, experience, chat):
    expected = literal_loss(make_model(vocab_size=120), chat, "token_mean").item()
    for wrong in (experience.mask.roll(1), torch.ones_like(experience.mask)):
        experience.mask = wrong
        measured = engine(make_model(vocab_size=120)).update(experience, objective("token_mean"))
        assert measured.values["train/loss"] != pytest.approx(expected, rel=1e-4)


def test_parts_of_a_mini_batch_add_up(make_rows, parts_add_up):
    rows = make_rows(groups=12, samples=1)
    logprobs = torch.randn(rows.num_tokens, requires_grad=True)
    parts_add_up(objective("token_mean"), (logprobs,), rows)


HEAD = PolicyHead(LogprobSettings(1.0, 8))


def updated_beside(
    model: tiny_models.PreTrainedModel, rows: Experience, supervised: Supervised, budget: int
) -> PassStatistics:
    """Update a policy that samples at another temperature than given answers have."""
    goal = PolicyObjective.of(AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3))
    trained = engine(model, temperature=0.7, micro_batch_tokens=budget)
    return trained.update(rows, goal, supervised=supervised)


def literal_policy_loss(model: tiny_models.PreTrainedModel, rows: Experience) -> torch.Tensor:
    """That of the first update of a step, where the ratio is 1."""
    logprobs, _ = padded_logprobs(model, rows, temperature=0.7)
    assert rows.advantages is not None
    return -((logprobs - logprobs.detach()).exp() * rows.advantages)[rows.mask].mean()


@pytest.mark.parametrize("budget", [30, 10_000])
def test_beside_a_policy_its_gradient_is_added(make_model, make_rows, experience, chat, budget):
    """The gradient of PPO-ptx, by a policy that samples at another temperature."""
    ours, theirs = (make_model(dtype=torch.float64, vocab_size=120) for _ in range(2))
    rows = make_rows(groups=3)
    supervised = Supervised(experience, SupervisedObjective(0.3), HEAD)
    measured = updated_beside(ours, rows, supervised, budget)
    policy_loss = literal_policy_loss(theirs, rows)
    sft_loss = literal_loss(theirs, chat, "token_mean")
    assert measured.values["actor/sft_loss"] == pytest.approx(sft_loss.item(), rel=1e-7)
    assert measured.values["actor/pg_loss"] == pytest.approx(policy_loss.item(), rel=1e-6)
    whole = policy_loss + 0.3 * sft_loss
    assert measured.values["actor/loss"] == pytest.approx(whole.item(), rel=1e-6)
    assert measured.tokens == int(rows.mask.sum()), "means are over the policy's tokens alone"
    assert_gradients(ours, theirs, whole, 1e-6)


@pytest.mark.parametrize("budget", [30, 10_000])
def test_tokens_by_their_uncertainty_and_both_losses_weighed(
    make_model, make_rows, experience, chat, budget
):
    """The gradient of CHORD, `(1 - μ) L_policy + μ L_sft`, whose weights φ have none."""
    ours, theirs = (make_model(dtype=torch.float64, vocab_size=120) for _ in range(2))
    rows = make_rows(groups=3)
    supervised = Supervised(experience, SupervisedObjective(0.3, uncertain_tokens=True), HEAD, 0.7)
    measured = updated_beside(ours, rows, supervised, budget)
    policy_loss = literal_policy_loss(theirs, rows)
    logprobs, _ = padded_logprobs(theirs, experience)
    likely = logprobs.detach().exp()
    sft_loss = -(likely * (1.0 - likely) * logprobs)[experience.mask].mean()
    assert measured.values["actor/sft_loss"] == pytest.approx(sft_loss.item(), rel=1e-6)
    assert measured.values["actor/pg_loss"] == pytest.approx(policy_loss.item(), rel=1e-6)
    whole = 0.7 * policy_loss + 0.3 * sft_loss
    assert measured.values["actor/loss"] == pytest.approx(whole.item(), rel=1e-6)
    assert_gradients(ours, theirs, whole, 1e-6)
