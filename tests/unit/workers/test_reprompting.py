from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from tiny_models import save_tokenizer

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.prompt_store import Prompt
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rows import Reprompt, Reprompted
from ppojob_trainer.workers.reprompting import reprompt

pytestmark = pytest.mark.processes

CHAT: Prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "q {x}"}]
RESPONSES = ["a", "{feedback}", "long response", "b", "c", "d"]
Made = tuple[Experience, Reprompted, list[str]]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[ChatTokenizer]:
    """A tokenizer with a token a character."""
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with ChatTokenizer(tmp_path) as opened:
        yield opened


@pytest.fixture
def made(chat: ChatTokenizer) -> Callable[..., Made]:
    """Prompts of two groups of three, and what they say."""

    def make(
        succeeded: list[int],
        feedback: dict[int, str],
        limit: int = 100,
        prompts: tuple[Prompt, Prompt] = (CHAT, CHAT),
        dropped: tuple[int, ...] = (),
    ) -> Made:
        settings = {
            "template": "{prompt}{other}{solution}{feedback}",
            "solutionTemplate": "[{response}]",
            "feedbackTemplate": "({feedback})",
        }
        spec = PPOJobSpec.model_validate(
            {
                "model": {"path": "m"},
                "data": {"train": [{"path": "a"}], "maxTeacherPromptTokens": limit},
                "algorithm": {
                    "type": "distillation",
                    "promptsPerStep": 2,
                    "samplesPerPrompt": 3,
                    "distillation": {"reprompt": settings},
                },
                "steps": {"total": 1},
            }
        )
        tokens = [torch.tensor([*chat.encode(text), 2]) for text in RESPONSES]
        rows = Experience(
            prompts=[torch.tensor(chat.encode("p")), torch.tensor(chat.encode("q"))],
            row_groups=torch.arange(2).repeat_interleave(3),
            response_tokens=torch.cat(tokens),
            lengths=torch.tensor([len(part) for part in tokens]),
            mask=torch.ones(sum(map(len, tokens)), dtype=torch.bool),
            rollout_logprobs=torch.zeros(sum(map(len, tokens))),
        )
        said = [feedback.get(row, "") for row in range(6)]
        texts = list(map(msgspec.json.encode, prompts))
        asked = Reprompt(texts, succeeded, list(dropped), said, began=0.0)
        answer = reprompt(spec, chat, asked, rows)
        texts = [
            chat.decode(one.tolist(), skip_special_tokens=False) for one in rows.teacher_prompts
        ]
        return rows, answer, texts

    return make


def turns(text: str) -> str:
    said = f"<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
    return f"{said}<|im_start|>assistant\n"


def test_the_first_other_success_of_the_group_is_shown_and_what_was_said(made) -> None:
    """What stands in braces in a response or a prompt stays; a row without either is left out."""
    rows, answer, texts = made([0, 1], {2: "f", 3: "g"})
    assert texts == [
        turns("q {x}{other}[{feedback}]"),
        turns("q {x}{other}[a]"),
        turns("q {x}{other}[a](f)"),
        turns("q {x}{other}(g)"),
        "q",
        "q",
    ]
    tokens = [len(one) for one in rows.teacher_prompts]
    assert answer == Reprompted(tokens, [0, 1, 2, 3], texts[0])
    assert rows.update_mask is not None
    assert rows.update_mask.tolist() == [row < 4 for row in rows.token_rows.tolist()]


def test_the_first_that_is_not_too_long_is_shown(made) -> None:
    """Of prompts that are text; where nothing is short enough, what was said alone may be."""
    limit = len("p{other}[a](f)")
    _, answer, texts = made([0, 2], {0: "f", 3: "g" * 99}, limit, ("p", "q"))
    assert texts == ["p{other}(f)", "p{other}[a]", "p{other}[a]", "q", "q", "q"]
    assert answer.taught == [0, 1, 2]
    _, answer, _ = made([0, 2], {}, 3, ("p", "q"))
    assert answer.taught == []


def test_a_row_without_a_score_is_taught_nothing(made) -> None:
    rows, answer, _ = made([0], {1: "f"}, dropped=(1,))
    assert answer.taught == [2]
    assert rows.update_mask[rows.token_rows == 1].tolist() == [False] * 11
