from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.rewards.row_checks import RowChecks, checks_of
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.workers.answer_probability import replace_answers

THOUGHT = "so it is <answer>"


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[ChatTokenizer]:
    """A tokenizer whose tokens hold several characters, a space before them included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f"{THOUGHT} 42 </answer> ?> ?>"] * 9, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    with ChatTokenizer(tmp_path) as opened:
        yield opened


def spec_of(limit: int = 100, **settings: object) -> PPOJobSpec:
    certainty = {"type": "answer_probability", **settings}
    return PPOJobSpec.model_validate(
        {
            "model": {"path": "m"},
            "data": {"train": [{"path": "a"}], "maxResponseTokens": limit},
            "algorithm": {"type": "grpo", "promptsPerStep": 1, "certaintyReward": certainty},
            "steps": {"total": 1},
        }
    )


@pytest.fixture
def texts(chat: ChatTokenizer) -> Callable[..., list[tuple[str, list[str]]]]:
    """What is read again of responses to one prompt, and the tokens of it that count."""

    def of(responses: list[str], answer: str, **settings: object) -> list[tuple[str, list[str]]]:
        tokens = [torch.tensor(chat.encode(text)) for text in responses]
        rows = Experience(
            prompts=[torch.tensor(chat.encode("p"))],
            row_groups=torch.zeros(len(tokens), dtype=torch.int64),
            response_tokens=torch.cat(tokens),
            lengths=torch.tensor([len(part) for part in tokens]),
            mask=torch.ones(sum(map(len, tokens)), dtype=torch.bool),
            rollout_logprobs=torch.zeros(sum(map(len, tokens))),
        )
        made = replace_answers(spec_of(**settings), chat, rows, [answer])
        sizes = made.lengths.tolist()
        return [
            (
                chat.decode(ids.tolist(), skip_special_tokens=False),
                [chat.decode([token]) for token in ids[marks].tolist()],
            )
            for ids, marks in zip(
                made.response_tokens.split(sizes), made.mask.split(sizes), strict=True
            )
        ]

    return of


def test_the_answer_is_replaced_behind_the_marker(texts):
    responses = [f"{THOUGHT} 7 </answer><end>", f"{THOUGHT}\n7", f"{THOUGHT}7", THOUGHT]
    again = texts(responses, "42")
    assert [text for text, _ in again] == [f"{THOUGHT}{space}42" for space in (" ", "\n", " ", " ")]
    # A space belongs to the token of the answer where one token holds both.
    assert ["".join(counted) for _, counted in again] == [" 42", "42", " 42", " 42"]
    (text, counted), base = texts(responses[:1], "42 ?>", debias=True)
    assert (text, base[0]) == (f"{THOUGHT} 42 ?>", " 42 ?>")
    assert counted == base[1] == [" 42", " ?>"]


def test_a_response_whose_answer_is_unclear_has_none(texts):
    responses = ["42", f"{THOUGHT} 1 {THOUGHT} 2", f"{'so ' * 30}{THOUGHT} 1", f"{THOUGHT} 1"]
    again = texts(responses, "42", limit=40)
    assert [bool(counted) for _, counted in again] == [False, False, False, True]
    assert [bool(counted) for _, counted in texts(responses, "42 " * 40, limit=40)] == [False] * 4


def test_rows_need_the_answer_whose_probability_is_learnt():
    checks = checks_of(spec_of())
    assert isinstance(checks, RowChecks)
    for truth in (None, "", " \n", ["42"], {"target": "42"}):
        assert "the answer whose probability" in (checks.ground_truth_problem("any", truth) or "")
    for truth in ("42", 42, 4.2):
        assert checks.ground_truth_problem("any", truth) is None
    assert checks.data_source_problem("any") is None
