"""Rows that have their answers: their tokens, and which of them are learnt."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from prompt_files import PromptFiles
from turn_templates import FAMILIES, ChatInProcess, write_family

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.prompt_store import AnswerPart, PromptRow

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Ann, I think."},
    {"role": "user", "content": "  Sure?\n"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Thanks."},
]
HEAD, END = "<|im_start|>assistant\n", "<|im_end|>"


@pytest.fixture
def files(tmp_path: Path) -> PromptFiles:
    tiny_models.save_tokenizer(tmp_path)
    return PromptFiles(tmp_path, ChatInProcess(tmp_path))


def opened(files: PromptFiles, *rows: object, **settings: Any) -> PromptDataset:
    settings = {"promptKey": "messages", **settings}
    spec = files.spec(files.lines("a.jsonl", *rows), **settings)
    return PromptDataset.open(spec.train, spec, files.chat, given="sft")


def told(chat: ChatTokenizer, row: PromptRow) -> list[tuple[str, bool]]:
    return [
        (chat.decode(part.tokens, skip_special_tokens=False), part.is_trained)
        for part in row.answers[0]
    ]


def without(message: dict[str, str]) -> dict[str, object]:
    return {**message, "loss_mask": 0}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChatTokenizer]:
    with ChatInProcess(write_family(tmp_path / "family", request.param)) as chat:
        yield chat


def test_a_row_is_what_the_template_writes_of_the_whole(
    family: ChatTokenizer, tmp_path: Path
) -> None:
    """Up to the end of the last turn of the assistant, whatever the family.

    But for the empty thought that Qwen3's template writes before a last turn without one: its
    header, which is the prompt of a rollout, does not have it.
    """
    with opened(PromptFiles(tmp_path, family), {"messages": TALK}) as dataset:
        row = dataset[0]
    (text,) = family.render_chats([TALK[:5]], open_turn=False)
    assert isinstance(text, str)
    whole = family.encode(text.replace("<think>\n\n</think>\n\n", ""))
    (prompt,) = family.encode_chats([TALK[:2]])
    ours = [*row.token_ids, *(token for part in row.answers[0] for token in part.tokens)]
    assert list(row.token_ids) == prompt
    assert ours == whole[: len(ours)]
    assert family.decode(whole[len(ours) :], skip_special_tokens=False).strip() == ""
    end = family.decode(family.eos_token_ids[:1], skip_special_tokens=False)
    parts = told(family, row)
    trained = [text for text, is_trained in parts if is_trained]
    assert trained == [f"Ann, I think.{end}", f"Yes.{end}"]
    assert [is_trained for _, is_trained in parts] == [True, False, True]


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (TALK[:3], [(f"Ann, I think.{END}", True)]),
        (
            [*TALK[:2], without(TALK[2]), *TALK[3:]],
            [
                (f"Ann, I think.{END}", False),
                (f"\n<|im_start|>user\n  Sure?\n{END}\n{HEAD}", False),
                (f"Yes.{END}", True),
            ],
        ),
        # What stands behind the last turn that is learnt changes nothing.
        ([*TALK[:4], without(TALK[4])], [(f"Ann, I think.{END}", True)]),
        (
            [
                TALK[1],
                {"role": "assistant", "content": "add(1)"},
                {"role": "tool", "content": "2"},
                {"role": "assistant", "content": "2"},
            ],
            [
                (f"add(1){END}", True),
                (f"\n<|im_start|>tool\n2{END}\n{HEAD}", False),
                (f"2{END}", True),
            ],
        ),
    ],
    ids=["one turn", "a given turn first", "a given turn last", "a tool"],
)
def test_turns_of_the_assistant_are_learnt(
    files: PromptFiles, messages: list[object], answer: list[tuple[str, bool]]
) -> None:
    with opened(files, {"messages": messages}) as dataset:
        assert told(files.chat, dataset[0]) == answer


@pytest.mark.parametrize(
    ("row", "settings", "prompt", "answer"),
    [
        (
            {"q": "1+1", "a": "2"},
            {"promptKey": "q", "answerKey": "a", "textPrompts": "user_message"},
            f"<|im_start|>user\n1+1{END}\n{HEAD}",
            f"2{END}",
        ),
        (
            {"extra_info": {"question": "1+1=", "answer": "2"}},
            {"promptKey": "extra_info.question", "answerKey": "extra_info.answer"},
            "1+1=",
            f"2{END}",
        ),
        (
            {"prompt": TALK[:2], "reward_model": {"ground_truth": "Ann"}},
            {"promptKey": "prompt", "answerKey": "reward_model.ground_truth"},
            f"<|im_start|>system\nBe brief.{END}\n<|im_start|>user\nWho?{END}\n{HEAD}",
            f"Ann{END}",
        ),
    ],
    ids=["question and answer", "text within a struct", "messages and an answer"],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_pairs(
    files: PromptFiles, row: Any, settings: Any, prompt: str, answer: str, form: str
) -> None:
    write = {"jsonl": files.lines, "parquet": files.table}[form]
    spec = files.spec(write(f"a.{form}", row), **settings)
    with PromptDataset.open(spec.train, spec, files.chat, given="sft") as dataset:
        assert files.chat.decode(dataset[0].token_ids, skip_special_tokens=False) == prompt
        assert told(files.chat, dataset[0]) == [(answer, True)]


LONG = {"messages": [TALK[1], {"role": "assistant", "content": "a long answer"}]}
SHORT = {"messages": [TALK[1], {"role": "assistant", "content": "short"}]}
UNTRAINED = {"messages": [TALK[1], without(TALK[2])]}


def test_rows_of_which_nothing_is_learnt_are_left_out_and_counted(files: PromptFiles) -> None:
    with opened(files, UNTRAINED, SHORT, UNTRAINED) as dataset:
        assert len(dataset) == 1
        (warning,) = dataset.warnings
    assert ": got 2 of 3 rows: nothing of them is learnt, and " in warning


def test_long_answers_are_dropped_or_cut(files: PromptFiles) -> None:
    limits = {"maxResponseTokens": 8}
    with opened(files, LONG, SHORT, overlongPrompts="drop", **limits) as dataset:
        assert told(files.chat, dataset[0]) == [(f"short{END}", True)]
        (warning,) = dataset.warnings
    assert ": got 1 of 2 rows: longer than spec.data.maxPromptTokens 512 or " in warning
    with opened(files, LONG, SHORT, overlongPrompts="truncate_right", **limits) as dataset:
        assert told(files.chat, dataset[0]) == [("a long a", True)]


def test_what_is_learnt_is_part_of_the_digest(files: PromptFiles) -> None:
    def digest(**settings: Any) -> str:
        with opened(files, SHORT, **settings) as dataset:
            return dataset.digest

    assert digest() == digest()
    assert digest() != digest(maxResponseTokens=100)


def test_parts_survive_the_store(files: PromptFiles) -> None:
    with opened(files, SHORT) as dataset:
        ((part,),) = dataset[0].answers
        assert isinstance(part, AnswerPart)
        assert isinstance(part.tokens, tuple)


def test_a_template_that_rewrites_turns_is_refused(
    tmp_path: Path, make_folder: Callable[..., Path]
) -> None:
    marked = "'<|im_start|>' if loop.revindex < 3"
    template = (
        "{% for m in messages %}{{ MARK }}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    )
    template = template.replace("MARK", marked)
    template += "{{ '<|im_start|>assistant: ' if add_generation_prompt }}"
    with ChatInProcess(make_folder(template)) as chat:
        files = PromptFiles(tmp_path, chat)
        path = files.lines("a.jsonl", {"messages": TALK})
        (error,) = files.errors(path, given="sft", promptKey="messages")
        assert "what the chat template writes of a turn depends on other turns" in error
        alone = files.lines("b.jsonl", {"messages": TALK[1:3]})
        assert files.errors(alone, given="sft", promptKey="messages") == []
