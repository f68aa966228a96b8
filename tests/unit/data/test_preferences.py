from pathlib import Path
from typing import Any

import pytest
import tiny_models
from prompt_files import PromptFiles
from turn_templates import ChatInProcess, write_family

from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.prompt_store import AnswerPart, PromptRow

HEAD, END = "<|im_start|>assistant\n", "<|im_end|>"
ASKED = {"role": "user", "content": "1+1"}
PROMPT = f"<|im_start|>user\n1+1{END}\n{HEAD}"


def said(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


FORMS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "text of all": (
        {"prompt": "1+1", "chosen": "2", "rejected": "3"},
        {"textPrompts": "user_message"},
    ),
    "messages and text": ({"prompt": [ASKED], "chosen": "2", "rejected": "3"}, {}),
    "messages of all": ({"prompt": [ASKED], "chosen": [said("2")], "rejected": [said("3")]}, {}),
    "whole conversations": ({"chosen": [ASKED, said("2")], "rejected": [ASKED, said("3")]}, {}),
    "text of whole conversations": (
        {"chosen": "\n\nHuman: 1+1\n\nAssistant: 2", "rejected": "\n\nHuman: 1+1\n\nAssistant: 3"},
        {},
    ),
    "whole conversations beside their prompt": (
        {"prompt": "1+1", "chosen": [ASKED, said("2")], "rejected": [ASKED, said("3")]},
        {},
    ),
    "other names, within a struct": (
        {"q": "1+1", "of": {"good": "2", "bad": "3"}},
        {
            "promptKey": "q",
            "chosenKey": "of.good",
            "rejectedKey": "of.bad",
            "textPrompts": "user_message",
        },
    ),
}


@pytest.fixture
def files(tmp_path: Path) -> PromptFiles:
    tiny_models.save_tokenizer(tmp_path)
    return PromptFiles(tmp_path, ChatInProcess(tmp_path))


def opened(
    files: PromptFiles, *rows: object, given: GivenType = "dpo", **settings: Any
) -> PromptDataset:
    return files.open(files.lines("a.jsonl", *rows), given=given, **settings)


def told(chat: ChatTokenizer, row: PromptRow) -> list[list[tuple[str, bool]]]:
    return [
        [(chat.decode(part.tokens, skip_special_tokens=False), part.is_trained) for part in answer]
        for answer in row.answers
    ]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_pair_is_the_same_one(files: PromptFiles, name: str) -> None:
    row, settings = FORMS[name]
    with opened(files, row, **settings) as dataset:
        found = dataset[0]
    assert files.chat.decode(found.token_ids, skip_special_tokens=False) == PROMPT
    assert told(files.chat, found) == [[(f"2{END}", True)], [(f"3{END}", True)]]


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"prompt": "1+1", "completion": "2", "label": 1}, {"textPrompts": "user_message"}),
        ({"prompt": [ASKED], "completion": [said("2")], "label": True}, {}),
        (
            {"q": [ASKED], "of": {"a": "2", "is_good": True}},
            {"promptKey": "q", "answerKey": "of.a", "labelKey": "of.is_good"},
        ),
    ],
)
def test_every_form_of_a_labelled_answer_is_the_same_one(files: PromptFiles, row, settings):
    with opened(files, row, row, given="kto", **settings) as dataset:
        found = dataset[0]
    assert files.chat.decode(found.token_ids, skip_special_tokens=False) == PROMPT
    assert told(files.chat, found) == [[(f"2{END}", True)]]
    assert found.ground_truth is True


@pytest.mark.parametrize("name", FORMS)
def test_a_pair_that_is_split_is_a_good_answer_and_a_bad_one(files: PromptFiles, name: str) -> None:
    pair, settings = FORMS[name]
    labelled = [
        {"prompt": [ASKED], "completion": text, "label": label}
        for text, label in (("2", True), ("3", False))
    ]
    with opened(files, *labelled, given="kto") as dataset:
        expected = [dataset[place] for place in range(len(dataset))]
    with opened(files, pair, pair, given="kto", splitPairs=True, **settings) as dataset:
        found = [dataset[place] for place in range(len(dataset))]
    for one, other in zip(found, expected * 2, strict=True):
        assert (one.token_ids, one.answers) == (other.token_ids, other.answers)
        assert one.ground_truth is other.ground_truth


def test_answers_of_split_pairs_are_dropped_one_by_one(files: PromptFiles) -> None:
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c" * 20}] * 3
    settings = {"splitPairs": True, "maxResponseTokens": 8, "overlongPrompts": "drop"}
    with opened(files, *pairs, given="kto", **settings) as dataset:
        kept = [dataset[place].ground_truth for place in range(len(dataset))]
    assert kept == [True] * 3


def test_a_pair_has_a_margin_of_its_own(files: PromptFiles) -> None:
    row = {"prompt": "1+1", "chosen": "2", "rejected": "3", "by": {"points": 2}}
    with opened(files, row, textPrompts="user_message", marginKey="by.points") as dataset:
        assert dataset[0].ground_truth == 2.0


def test_what_conversations_have_in_common_is_their_prompt(files: PromptFiles) -> None:
    talk = [ASKED, said("2"), {"role": "user", "content": "sure?"}]
    pair = {"chosen": [*talk, said("yes")], "rejected": [*talk, said("no"), ASKED, said("2")]}
    with opened(files, pair) as dataset:
        found = dataset[0]
    prompt = f"{PROMPT}2{END}\n<|im_start|>user\nsure?{END}\n{HEAD}"
    assert files.chat.decode(found.token_ids, skip_special_tokens=False) == prompt
    given = f"\n<|im_start|>user\n1+1{END}\n{HEAD}"
    assert told(files.chat, found) == [
        [(f"yes{END}", True)],
        [(f"no{END}", True), (given, False), (f"2{END}", True)],
    ]


@pytest.mark.parametrize("pad", [None, "\n"])
def test_a_scored_row_is_the_whole_conversation_as_a_reward_model_reads_it(tmp_path, pad):
    """Up to padding; one token behind it has the score."""
    tiny_models.save_tokenizer(tmp_path)
    id_ = "null" if pad is None else tiny_models.NAMES.index(pad)
    (tmp_path / "config.json").write_text(f'{{"pad_token_id": {id_}}}')
    files = PromptFiles(tmp_path, ChatInProcess(tmp_path))
    with opened(files, FORMS["messages and text"][0], given="reward_model") as dataset:
        row = dataset[0]
    end = END if pad else f"{END}\n"
    for answer, text in zip(row.answers, "23", strict=True):
        read, scored = answer
        assert scored == AnswerPart((0,), True)
        assert not read.is_trained
        ids = [*row.token_ids, *read.tokens]
        assert files.chat.decode(ids, skip_special_tokens=False) == f"{PROMPT}{text}{end}"


@pytest.mark.parametrize("given", ["dpo", "reward_model"])
def test_calls_are_learnt_in_answers_alone(tmp_path: Path, given: GivenType) -> None:
    """In front of them, and in what is scored, the template is given them as they stand."""
    called = {**said(""), "tool_calls": [{"function": {"name": "add", "arguments": {"a": 3}}}]}
    talk = [ASKED, called, {"role": "tool", "content": "4"}]
    early = {"chosen": [*talk, said("4")], "rejected": [*talk, said("5")]}
    late = {"chosen": [ASKED, called], "rejected": [ASKED, said("5")]}
    with ChatInProcess(write_family(tmp_path / "family", "qwen2.5")) as chat:
        files = PromptFiles(tmp_path, chat)
        (error,) = files.errors(files.lines("early.jsonl", early), given=given)
        assert "early.jsonl:1:prompt.tool_calls: got " in error
        errors = files.errors(files.lines("late.jsonl", late), given=given)
        assert ["late.jsonl:1:chosen.tool_calls: got " in one for one in errors] == [True] * (
            given == "reward_model"
        )


def test_long_pairs_are_dropped_and_equal_ones_left_out(files: PromptFiles) -> None:
    pairs = [
        {"prompt": "a", "chosen": "b", "rejected": "c" * 20},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ]
    with opened(files, *pairs, maxResponseTokens=8, overlongPrompts="drop") as dataset:
        assert len(dataset) == 1
    alike = {"prompt": "a", "chosen": "same end", "rejected": "same beginning"}
    cut = {"maxResponseTokens": 4, "overlongPrompts": "truncate_right"}
    with opened(files, alike, pairs[1], **cut) as dataset:
        assert len(dataset) == 1
        (warning,) = dataset.warnings
    assert ": got 1 of 2 rows: both answers are equal, or one has no trained token, and " in warning


def test_what_a_pair_is_taken_for_is_part_of_the_digest(files: PromptFiles) -> None:
    row = {**FORMS["messages and text"][0], "best": "2"}
    digests = set()
    for given, settings in (("dpo", {}), ("reward_model", {}), ("dpo", {"chosenKey": "best"})):
        with opened(files, row, given=given, **settings) as dataset:
            digests.add(dataset.digest)
    assert len(digests) == 3
