import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from prompt_files import PromptFiles
from turn_templates import FAMILIES, ChatInProcess, write_family

from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs
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
    return files.open(files.lines("a.jsonl", *rows), given="sft", **settings)


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


def test_a_row_is_what_the_template_writes_of_the_whole(family: ChatTokenizer, tmp_path: Path):
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
def test_turns_of_the_assistant_are_learnt(files: PromptFiles, messages, answer):
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
def test_pairs(files: PromptFiles, row: Any, settings: Any, prompt: str, answer: str, form: str):
    write = {"jsonl": files.lines, "parquet": files.table}[form]
    with files.open(write(f"a.{form}", row), given="sft", **settings) as dataset:
        assert files.chat.decode(dataset[0].token_ids, skip_special_tokens=False) == prompt
        assert told(files.chat, dataset[0]) == [(answer, True)]


ROW = {"prompt": TALK[:2], "data_source": "x", "reward_model": {"ground_truth": "Ann"}}
ANN = {"role": "assistant", "content": "Ann."}


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("Ann.", [f"Ann.{END}"]),
        (ANN, [f"Ann.{END}"]),
        ([ANN, "Bea."], [f"Ann.{END}", f"Bea.{END}"]),
        (["Ann.", "Ann."], [f"Ann.{END}"] * 2),
        (["a long answer"], ["a long an"]),
        (None, []),
        ([], []),
    ],
)
def test_given_responses_are_what_the_policy_would_have_drawn(files, cell, answers):
    """Beside what rewards read; held-out rows are read without them."""
    row, other = ({**ROW, "extra_info": {"guide": {"target": one}}} for one in (cell, "Bea."))
    settings = {"maxResponseTokens": 9, "overlongPrompts": "truncate_right"}
    path, settings["guidanceKey"] = files.lines("a.jsonl", row, other), "extra_info.guide.target"
    spec = files.spec(path, validation=[{"path": str(path)}], **settings)
    with PromptDataset.open(spec, files.chat) as dataset:
        found = dataset[0]
    texts = [
        files.chat.decode([id_ for part in answer for id_ in part.tokens])
        for answer in found.answers
    ]
    assert texts == [files.chat.decode(files.chat.encode(answer)) for answer in answers]
    assert all(part.is_trained for answer in found.answers for part in answer)
    assert (found.ground_truth, found.data_source) == ("Ann", "x")
    with PromptDataset.open(spec.of_validation, files.chat) as held_out:
        assert held_out[0].answers == ()
        assert held_out[0].token_ids == found.token_ids


def test_given_responses_decide_which_rows_there_are(files: PromptFiles) -> None:
    """Where they begin to be read, or are cut elsewhere, a run is not gone on with."""
    path, digests = files.lines("a.jsonl", {**ROW, "target": ["Ann."], "other": ["Bea."]}), set()
    for key, limit in ((None, 12), (None, 13), ("target", 12), ("target", 13), ("other", 12)):
        with files.open(path, guidanceKey=key, maxResponseTokens=limit) as dataset:
            digests.add(dataset.digest)
    assert len(digests) == 4


LONG = {"messages": [TALK[1], {"role": "assistant", "content": "a long answer"}]}
SHORT = {"messages": [TALK[1], {"role": "assistant", "content": "short"}]}
UNTRAINED = {"messages": [TALK[1], without(TALK[2])]}


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}
CALL = {"id": "call00007", "type": "function", "function": {"name": "add", "arguments": {"a": 3}}}
CALLED = [
    *TALK[:2],
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call00007"},
    {"role": "assistant", "content": "It is 4."},
]


@pytest.mark.parametrize("arguments", [{"a": 3}, '{"a": 3}'])
def test_calls_are_learnt_as_the_template_writes_them(family, tmp_path, arguments):
    """Those of `tool_calls`, behind a prompt that shows the row's tools."""
    if "add" not in str(family.render_chats([CALLED], open_turn=False)):
        pytest.skip("the template shows no calls")
    (text,) = family.render_chats([CALLED], tools=[ADD], open_turn=False)
    assert isinstance(text, str)
    function = {"name": "add", "arguments": arguments}
    call = {**CALL, "function": function}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    row = {"messages": [*CALLED[:2], said, *CALLED[3:]], "tools": [ADD]}
    with opened(PromptFiles(tmp_path, family), row, maxPromptTokens=1_024) as dataset:
        found = dataset[0]
    whole = family.encode(text.replace("<think>\n\n</think>\n\n", ""))
    ours = [*found.token_ids, *(token for part in found.answers[0] for token in part.tokens)]
    assert ours == whole[: len(ours)]
    assert family.decode(whole[len(ours) :], skip_special_tokens=False).strip() == ""
    assert [part.is_trained for part in found.answers[0]] == [True, False, True]


def test_tools_are_shown_of_each_row(files: PromptFiles, tmp_path: Path) -> None:
    """In JSON text too; parquet gives the schema of one tool the entries of others."""
    chat = ChatInProcess(write_family(tmp_path / "family", "qwen2.5"))
    mul = {"type": "function", "function": {"name": "mul", "strict": True}}
    rows = [
        {"messages": TALK[:3], "schemas": json.dumps([ADD])},
        {"messages": TALK[:3], "schemas": ""},
    ]
    tables = [{"messages": TALK[:3], "schemas": [tool]} for tool in (ADD, mul)]
    expected = chat.encode_prompts(
        [TALK[:2]] * 3, [TemplateInputs({}, given) for given in ([ADD], [], [mul])]
    )
    files = PromptFiles(tmp_path, chat)
    with opened(files, *rows, toolsKey="schemas") as dataset:
        assert [list(row.token_ids) for row in (dataset[0], dataset[1])] == expected[:2]
    keys = {"promptKey": "messages", "toolsKey": "schemas"}
    with files.open(files.table("b.parquet", *tables), given="sft", **keys) as dataset:
        assert [list(row.token_ids) for row in (dataset[0], dataset[1])] == expected[::2]


def test_thoughts_are_learnt_as_the_template_writes_them(tmp_path: Path) -> None:
    chat = ChatInProcess(write_family(tmp_path / "family", "qwen3"))
    said = {"role": "assistant", "content": "Ann.", "reasoning_content": "Who asks?"}
    for variables in ({}, {"enable_thinking": True}):
        row = {"messages": [*TALK[:2], said], **variables}
        columns = {"templateColumns": [*variables]}
        with opened(PromptFiles(tmp_path, chat), row, **columns) as dataset:
            (answer,) = told(chat, dataset[0])
        assert answer == (f"<think>\nWho asks?\n</think>\n\nAnn.{END}", True)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("smollm2", {"tool_calls": [CALL]}),
        ("smollm2", {"reasoning_content": "Who asks?"}),
        ("llama3", {"tool_calls": [CALL]}),  # which shows the calls, and not what is said beside
    ],
)
def test_a_template_that_hides_a_part_of_a_turn_is_refused(tmp_path: Path, name: str, own):
    """It would be trained on a turn that says something else. Each such row is named."""
    with ChatInProcess(write_family(tmp_path / "family", name)) as chat:
        files = PromptFiles(tmp_path, chat)
        row = {"messages": [*TALK[:2], {**TALK[2], **own}]}
        path = files.lines("a.jsonl", {"messages": TALK[:3]}, row, row)
        (error,) = files.errors(path, given="sft", promptKey="messages")
    assert "a.jsonl:2:messages" in error
    assert "it omits tool calls or reasoning of a turn" in error


def test_arguments_are_text_where_a_template_prints_them(tmp_path: Path, make_folder):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
        "{% for call in m.tool_calls %}{{ call.function.name ~ call.function.arguments }}"
        "{% endfor %}<|im_end|>{% endfor %}"
        "{{ '<|im_start|>assistant: ' if add_generation_prompt }}"
    )
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "f", "arguments": {"a": ""}}],
    }
    row = {"messages": [TALK[1], said]}
    with (
        ChatInProcess(make_folder(template)) as chat,
        opened(PromptFiles(tmp_path, chat), row) as dataset,
    ):
        assert told(chat, dataset[0]) == [(f'f{{"a": ""}}{END}', True)]


def test_nulls_are_those_of_the_file_and_not_of_its_format(tmp_path: Path) -> None:
    def calling(arguments: object) -> dict[str, object]:
        call = {"function": {"name": "add", "arguments": arguments}}
        return {"messages": [TALK[1], {"role": "assistant", "tool_calls": [call]}]}

    with ChatInProcess(write_family(tmp_path / "family", "qwen2.5")) as chat:
        files = PromptFiles(tmp_path, chat)
        rows = [calling({"a": 3}), calling({"b": 4})]
        for path, texts in (
            (files.table("a.parquet", *rows), ['{"a": 3}', '{"b": 4}']),
            (files.lines("a.jsonl", calling({"a": None})), ['{"a": null}']),
        ):
            with files.open(path, given="sft", promptKey="messages") as dataset:
                for index, text in enumerate(texts):
                    ((answer, _),) = told(chat, dataset[index])
                    assert text in answer


def test_a_template_that_shows_tools_again_and_again_is_refused(tmp_path: Path, make_folder):
    template = (
        "{% for m in messages %}<|im_start|>"
        "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
        "{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{{ '<|im_start|>assistant: ' if add_generation_prompt }}"
    )
    with ChatInProcess(make_folder(template)) as chat:
        path = PromptFiles(tmp_path, chat).lines("a.jsonl", {"messages": TALK, "tools": [ADD]})
        (error,) = PromptFiles(tmp_path, chat).errors(path, given="sft", promptKey="messages")
    assert "the chat template repeats the tools before later turns" in error


def test_columns_are_variables_of_the_template(tmp_path: Path) -> None:
    chat = ChatInProcess(write_family(tmp_path / "family", "qwen3"))
    rows = [{"messages": TALK[:3], "enable_thinking": value} for value in (True, False, None)]
    settings = {
        "templateColumns": ["enable_thinking"],
        "applyChatTemplateKwargs": {"enable_thinking": False},
    }
    with opened(PromptFiles(tmp_path, chat), *rows, **settings) as dataset:
        prompts = [chat.decode(dataset[i].token_ids, skip_special_tokens=False) for i in range(3)]
    empty = "<think>\n\n</think>\n\n"
    assert [prompt.endswith(f"{HEAD}{empty}") for prompt in prompts] == [False, True, True]
    assert [prompt.endswith(HEAD) for prompt in prompts] == [True, False, False]


@pytest.mark.parametrize("tools", ["[{", [{"name": "add"}], {"add": ADD}, 3])
def test_tools_of_another_form_are_refused(files: PromptFiles, tools: object) -> None:
    path = files.lines("a.jsonl", {"messages": TALK, "tools": tools})
    (error,) = files.errors(path, given="sft", promptKey="messages")
    assert "a.jsonl:1:tools: got " in error


@pytest.mark.parametrize("calls", ["add", [{"name": 3}], [{"name": "add", "arguments": "{"}]])
def test_calls_of_another_form_are_refused(files: PromptFiles, calls: object) -> None:
    path = files.lines("a.jsonl", {"messages": [*TALK[:2], {**TALK[2], "tool_calls": calls}]})
    (error,) = files.errors(path, given="sft", promptKey="messages")
    assert "a.jsonl:1:messages[2].tool_calls" in error


def test_rows_of_which_nothing_is_learnt_are_left_out_and_counted(files: PromptFiles) -> None:
    with opened(files, UNTRAINED, SHORT, UNTRAINED) as dataset:
        assert len(dataset) == 1
        (warning,) = dataset.warnings
    assert ": got 2 of 3 rows: no token of their answers is trained, and " in warning


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


def test_a_template_that_rewrites_turns_is_refused(tmp_path: Path, make_folder):
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
        assert "so the rendering of a turn depends on other turns" in error
        alone = files.lines("b.jsonl", {"messages": TALK[1:3]})
        assert files.errors(alone, given="sft", promptKey="messages") == []
