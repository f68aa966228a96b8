import contextlib
import datetime
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prompt_files import CHATML, encode_chat

from ppojob_trainer.data import template_renderer
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.errors import ConfigError, JobFailed

pytestmark = pytest.mark.processes

MakeFolder = Callable[..., Path]

TURNS = [
    {"role": "system", "content": "  Be brief. <b>&amp; \u00e9\u4e16 "},
    {"role": "user", "content": "3 + 5\n\n"},
    {"role": "assistant", "content": "3 + 5 = 8\n#### 8"},
    {"role": "user", "content": "9 + 9 + 8"},
]

TEMPLATES = {
    "chatml": CHATML,
    "default system": (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
        "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ eos_token ~ '\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
    ),
    "instructions": (
        "{{ bos_token }}{% set ns = namespace(system='') %}\n"
        "{% for m in messages %}\n"
        "  {% if m.role == 'system' %}\n"
        "    {% set ns.system = m.content | trim %}\n"
        "  {% elif m.role == 'user' %}\n"
        "[INST] {{ ns.system ~ '\n\n' if loop.index0 < 2 else '' }}{{ m.content.strip() }}"
        " [/INST]\n"
        "  {% elif m.role == 'assistant' %}\n"
        "{{ m.content }}{{ eos_token }}\n"
        "  {% else %}\n"
        "    {{ raise_exception('unknown role ' ~ m.role) }}\n"
        "  {% endif %}\n"
        "{% endfor %}\n"
    ),
    "json and loop control": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m | tojson }}{{ m | tojson(indent=2) }}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% endfor %}{% if tools is none and documents is not defined %}never{% endif %}"
    ),
    "generation blocks": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% set x = 1 %}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{{ x }}{% endfor %}"
    ),
    "variables": (
        "{{ 'think' if enable_thinking else 'answer' }}{% macro show(m) %}({{ m.content }})"
        "{% endmacro %}{% for m in messages[::-1] %}{{ show(m) }}{% endfor %}"
        "{{ strftime_now('%Y') }}{{ pad_token }}{{ unk_token }}"
    ),
}


UNKNOWN = {"eos_token": "<|end|>", "unk_token": "<unk>"}
"""Tokens that only the configuration names."""


@pytest.mark.slow  # the import of transformers alone
@pytest.mark.parametrize("tokens", [{}, UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_numbers_are_those_of_transformers(name: str, tokens, make_folder: MakeFolder) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_folder(TEMPLATES[name], **tokens)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    variables = {"enable_thinking": True}
    with ChatTokenizer(folder) as ours:
        for turns, open_turn in itertools.product((TURNS, TURNS[1:], TURNS[1:2]), (False, True)):
            expected = theirs.apply_chat_template(
                turns, add_generation_prompt=open_turn, return_dict=False, **variables
            )
            assert ours.encode_chats([turns], variables, open_turn=open_turn) == [expected]
        assert ours.eos_token_ids == (theirs.eos_token_id,)
        for skip in (True, False):
            text = ours.decode(expected, skip_special_tokens=skip)
            assert text == theirs.decode(expected, skip_special_tokens=skip)


ONLY_PARTS = (
    "{% for m in messages %}{{ m.role }}{{ ':' if m.content[0].type == 'image' else ': ' }}"
    "{% for part in m.content %}{{ part.text if part.type == 'text' }}{% endfor %}"
    "{{ eos_token }}{% endfor %}{{ 'assistant:' if add_generation_prompt }}"
)
"""Which passes over the characters of a text, as the templates of SmolVLM do."""


@pytest.mark.slow
def test_a_template_that_shows_parts_alone_is_given_parts(make_folder: MakeFolder) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_folder(ONLY_PARTS)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in TURNS]
    with ChatTokenizer(folder) as ours:
        for open_turn in (False, True):
            expected = theirs.apply_chat_template(
                parts, add_generation_prompt=open_turn, return_dict=False
            )
            for turns in (TURNS, parts, [TURNS[0], *parts[1:]]):
                assert ours.encode_chats([turns], open_turn=open_turn) == [expected]
        assert "9 + 9 + 8" in ours.decode(expected)


def rendered(folder: Path, **options: Any) -> str:
    with ChatTokenizer(folder, **options) as tokenizer:
        return tokenizer.decode(encode_chat(tokenizer, TURNS))


def refusal(folder: Path) -> str:
    with pytest.raises(BadChatTemplate) as caught:
        rendered(folder)
    (line,) = caught.value.problems
    assert line.startswith(f"{folder / 'tokenizer_config.json'}")
    assert "\n" not in line
    return line


def test_a_batch_equals_single_calls_and_text_is_taken_as_it_is(chat: ChatTokenizer) -> None:
    prompts = [TURNS, "plain <|im_start|>text", TURNS[1:]]
    ids = [encode_chat(chat, TURNS), chat.encode(str(prompts[1])), encode_chat(chat, TURNS[1:])]
    assert chat.encode_prompts(prompts) == ids
    assert chat.encode("<|im_start|>") == [0]


def test_end_tokens_of_the_model_follow_the_tokenizers(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 1]}))
    assert ChatTokenizer(folder).eos_token_ids == (1, 4)


@pytest.mark.parametrize("place", ["text", "argument", "file", "list", "config", "processor"])
def test_where_the_template_comes_from(place: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    wanted, other = "{{ 'wanted' }}", "{{ 'other' }}"
    given: str | None = None
    if place == "config":
        folder = make_folder(wanted)
    elif place == "text":
        folder, given = make_folder(other), wanted
    elif place == "list":
        named = [{"name": "tool_use", "template": other}, {"name": "default", "template": wanted}]
        folder = make_folder(None, chat_template=named)
    elif place == "processor":
        folder = make_folder(None)
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": wanted}))
    else:
        folder = make_folder(other)
        given = str(tmp_path / "given.jinja") if place == "argument" else None
        Path(given or folder / "chat_template.jinja").write_text(wanted)
    assert rendered(folder, chat_template=given) == "wanted"


def test_the_time_that_templates_see_can_be_fixed(make_folder: MakeFolder) -> None:
    folder = make_folder("{{ strftime_now('%d %b %Y %H') }}")
    began = datetime.datetime(2001, 2, 3, 4, tzinfo=datetime.UTC).timestamp()
    with ChatTokenizer(folder, began=began) as tokenizer:
        assert tokenizer.decode(encode_chat(tokenizer, TURNS)) == "03 Feb 2001 04"
        tokenizer.set_time(began + 3600)
        assert tokenizer.decode(encode_chat(tokenizer, TURNS)) == "03 Feb 2001 05"


@pytest.fixture(autouse=True)
def _no_guardian(chat: ChatTokenizer) -> None:
    """The process that renders for other tests comes back where one asks it."""
    chat.close()


def children_of(pid: int | str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def guardians() -> list[int]:
    """Processes of ours that watch one which renders a template."""
    name = b"ppojob_trainer.data.template_child"
    return [pid for pid in children_of("self") if name in Path(f"/proc/{pid}/cmdline").read_bytes()]


HOSTILE = {
    "attributes": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "code": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
    "mutation": ("{{ messages.append(1) }}", "unsafe"),
    "long text": ("{{ 'a' * (messages | length * 10 ** 12) }}", "MemoryError"),
    "folded text": ("{{ 'a' * 10 ** 12 }}", "MemoryError"),
    "long range": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "syntax": ("line 1\n{% if %}", "Expected an expression"),
    "unknown tag": ("{% include 'x' %}", "no loader"),
    "undefined": ("{{ nothing.at.all }}", "'nothing' is undefined"),
    "refusal": (
        "one\ntwo\n{{ raise_exception('alternate, please') }}",
        "tokenizer_config.json:3: got 'alternate, please' from ",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_clear_line(name: str, make_folder: MakeFolder) -> None:
    template, reason = HOSTILE[name]
    assert reason in refusal(make_folder(template))


def test_format_strings_reach_no_attribute(make_folder: MakeFolder) -> None:
    assert rendered(make_folder("[{{ '{0.__class__}'.format('') }}]")) == "[]"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ (messages | length + 9) ** (10 ** 10) }}",
    ],
    ids=["loops", "folded power", "power"],
)
def test_a_template_that_does_not_end_is_killed_in_time(template, make_folder, monkeypatch) -> None:
    monkeypatch.setattr(template_renderer, "RENDER_SECONDS", 1.0)
    monkeypatch.setattr(template_renderer, "START_SECONDS", 10.0)
    assert "gave no answer in 1" in refusal(make_folder(template))


def test_a_child_that_somebody_ends_or_holds_costs_nothing(make_folder, monkeypatch) -> None:
    template = "{{ 'x' * 10 ** 12 if messages | length > 1 else 'fine' }}"
    with ChatTokenizer(make_folder(template)) as tokenizer:
        with pytest.raises(BadChatTemplate):
            encode_chat(tokenizer, TURNS)
        for blow in (signal.SIGKILL, signal.SIGSTOP):
            assert tokenizer.decode(encode_chat(tokenizer, TURNS[1:2])) == "fine"
            (guardian,) = guardians()
            (worker,) = children_of(guardian)
            os.kill(worker, blow)
            monkeypatch.setattr(template_renderer, "RENDER_SECONDS", 3.0)
            assert tokenizer.decode(encode_chat(tokenizer, TURNS[1:2])) == "fine"
            assert guardian not in guardians()


@pytest.mark.parametrize("victim", ["guardian", "worker"])
def test_children_that_are_killed_again_and_again_are_not_the_templates_fault(
    victim: str, make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is short: the child is the first to be killed. Whoever meets that may try later."""
    monkeypatch.setattr(template_renderer, "RENDER_SECONDS", 300.0)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    killed: set[int] = set()
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(OSError):  # one that is gone
                for guardian in guardians():
                    for worker in children_of(guardian):
                        os.kill(guardian if victim == "guardian" else worker, signal.SIGKILL)
                        killed.add(guardian)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(JobFailed, match="chat template was killed by signal 9"):
            rendered(make_folder(endless))
    finally:
        over.set()
        killer.join()
    assert len(killed) == 2


def test_close_leaves_no_process(make_folder: MakeFolder) -> None:
    tokenizer = ChatTokenizer(make_folder())
    encode_chat(tokenizer, TURNS)
    assert len(guardians()) == 1
    tokenizer.close()
    assert not guardians()
    assert encode_chat(tokenizer, TURNS)
    tokenizer.close()


@pytest.mark.parametrize("name", ["add_generation_prompt", "tools"])
def test_variables_of_ours_are_not_the_users(name: str, chat: ChatTokenizer) -> None:
    with pytest.raises(BadChatTemplate, match=f"{name}: set by the trainer"):
        encode_chat(chat, TURNS, **{name: False})


def test_schemas_of_tools_are_a_variable_of_the_template(make_folder: MakeFolder) -> None:
    folder = make_folder("{{ tools[0].function.name if tools is not none else 'none' }}")
    with ChatTokenizer(folder) as chat:
        for tools, said in (([{"function": {"name": "add"}}], "add"), ([], "none"), (None, "none")):
            assert chat.encode_chats([TURNS], tools=tools) == [chat.encode(said)]
        plain = chat.digest
    with ChatTokenizer(folder, tools=[{"function": {"name": "add"}}]) as chat:
        assert chat.encode_prompts([TURNS]) == [chat.encode("add")]
        assert chat.digest != plain


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", None, "got no tokenizer: No such file"),
        ("tokenizer.json", b"{}", "got no tokenizer"),
        ("tokenizer_config.json", b"[1", "a JSON object"),
        ("tokenizer_config.json", b"[1]", "a JSON object"),
        ("chat_template.jinja", b"\xff", "in UTF-8"),
    ],
)
def test_damaged_files_are_named(name, content, match, make_folder) -> None:
    path = make_folder() / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=match):
        ChatTokenizer(path.parent)


def test_digest_tells_templates_and_vocabularies_apart(make_folder: MakeFolder) -> None:
    digests = {
        ChatTokenizer(make_folder("a")).digest,
        ChatTokenizer(make_folder("b")).digest,
        ChatTokenizer(make_folder("b", eos_token="</s>")).digest,
    }
    assert len(digests) == 3
    assert ChatTokenizer(make_folder("a")).digest in digests
