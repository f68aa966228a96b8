import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from golden_lines import assert_lines, read_lines
from tokenizers import Tokenizer, models, pre_tokenizers
from turn_templates import FAMILIES, TOOLS, ChatInProcess, write_family

from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.data.turn_check import check_template, shows_tools
from ppojob_trainer.data.turns import TurnTemplate

SMOLLM2 = Path(__file__).parents[3] / "models" / "smollm2-135m"
TOOL = {"role": "tool", "content": "42", "name": "add"}
USER = {"role": "user", "content": "And now?"}
WORDS = ["so", "  two  ", "\n", "\u4e16\u754c \U0001f327", '{"a": "\\n"}', "<b>", "", "end"]
WORDS += ["\n\n<information>"]


@pytest.fixture(params=FAMILIES)
def template(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TurnTemplate]:
    folder = write_family(tmp_path / request.param, request.param)
    with ChatInProcess(folder) as chat:
        yield TurnTemplate(chat)


def family(tmp_path: Path, name: str, text: str | None = None, **variables: bool) -> TurnTemplate:
    return TurnTemplate(ChatInProcess(write_family(tmp_path / name, name, text)), variables)


def told(template: TurnTemplate, *messages: dict[str, str], written: str | None = None) -> str:
    drawn = None if written is None else template.chat.encode(written)
    ids = template.delta(messages, TOOLS, written=drawn)
    return template.chat.decode(ids, skip_special_tokens=False)


QWEN = "<|im_start|>assistant\n"
LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        ("smollm2", [TOOL], "\n<|im_start|>tool\n42<|im_end|>\n" + QWEN),
        (
            "qwen3",
            [TOOL, TOOL, USER],
            "\n<|im_start|>user\n<tool_response>\n42\n</tool_response>\n<tool_response>\n42\n"
            "</tool_response><|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n" + QWEN,
        ),
        (
            "llama3",
            [{**TOOL, "content": ' "6"\n'}],
            '<|start_header_id|>ipython<|end_header_id|>\n\n" \\"6\\"\\n"<|eot_id|>' + LLAMA,
        ),
        ("qwen2.5", [{**USER, "content": ""}], "\n<|im_start|>user\n<|im_end|>\n" + QWEN),
    ],
)
def test_what_stands_between_two_turns(name: str, messages, expected: str, tmp_path: Path):
    assert told(family(tmp_path, name), *messages) == expected


@pytest.mark.parametrize(
    ("name", "written", "begins"),
    [
        ("qwen2.5", "", "<|im_end|>\n<|im_start|>user"),
        ("qwen2.5", "<tool_call>", "<|im_end|>\n<|im_start|>user"),
        ("llama3", "42<|eom_id|>", "<|start_header_id|>"),
        ("llama3", "cut off", "<|eot_id|><|start_header_id|>"),
    ],
)
@pytest.mark.parametrize("message", [TOOL, USER])
def test_the_end_of_a_turn_stands_there_once(name, written, begins, message, tmp_path):
    found = told(family(tmp_path, name), message, written=written)
    assert found.startswith(begins)
    assert found.count("assistant") == 1


OBSERVED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{% elif m.role == 'tool' %}<|endoftext|>{{ m.content }}"
    "{% else %}<|im_end|>{{ m.content }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>' if add_generation_prompt }}"
)
"""As GLM's: the token that opens an answer is what the model ends its turn with."""
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{{ m.content }}"
    "{% for c in m.tool_calls %} to={{ c.function.name }} {{ c.function.arguments | tojson }}"
    "{% endfor %}{{ '<|endoftext|>' if loop.last and not add_generation_prompt else '<|im_end|>' }}"
    "{% else %}<|im_start|>{{ m.name or m.role }}:{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{{ '<|im_start|>' if add_generation_prompt }}"
)
"""As gpt-oss's: the last turn ends otherwise than those before it; answers have names."""


@pytest.mark.parametrize(
    ("text", "written", "message", "expected"),
    [
        (OBSERVED, "x<|endoftext|>", TOOL, "42<|im_start|>"),
        (OBSERVED, "x", TOOL, "<|endoftext|>42<|im_start|>"),
        (OBSERVED, None, TOOL, "<|endoftext|>42<|im_start|>"),
        (OBSERVED, "x<|im_end|>", TOOL, "<|endoftext|>42<|im_start|>"),
        (OBSERVED, "x<|im_end|>", USER, "And now?<|im_start|>"),
        (HARMONY, "x<|endoftext|>", TOOL, "<|im_start|>add:42<|im_end|><|im_start|>"),
        (HARMONY, "x", TOOL, "<|im_end|><|im_start|>add:42<|im_end|><|im_start|>"),
        (
            HARMONY,
            None,
            {**TOOL, "name": "add<|im_end|>"},
            "<|im_start|>tool:42<|im_end|><|im_start|>",
        ),
    ],
)
def test_ends_that_depend_on_what_follows(text, written, message, expected, tmp_path):
    found = told(family(tmp_path, "qwen2.5", text), message, written=written)
    assert found == expected


def test_the_last_question_decides_about_thoughts_and_not_the_one_made_up(tmp_path: Path) -> None:
    empty = "<think>\n\n</think>\n\n"
    for thinks in (True, False):
        template = family(tmp_path, "qwen3", enable_thinking=thinks)
        for message in (TOOL, USER):
            assert told(template, message).endswith(QWEN + ("" if thinks else empty))
            assert told(template, message).count("<think>") == (not thinks)


def test_a_suffix_is_rendered_once(template: TurnTemplate) -> None:
    chat = template.chat
    assert isinstance(chat, ChatInProcess)
    template.delta([TOOL], TOOLS)
    rendered = chat.rendered
    for i in range(50):
        template.delta([{**TOOL, "content": str(i)}], TOOLS)
    assert chat.rendered == rendered
    template.delta([TOOL, TOOL], TOOLS)
    assert chat.rendered > rendered


def test_names_without_end_take_no_memory_without_end(tmp_path: Path) -> None:
    template = family(tmp_path, "qwen2.5", HARMONY)
    for i in range(260):
        assert f"tool{i}:42" in told(template, {**TOOL, "name": f"tool{i}"})
    assert len(template._suffixes) <= 256


def controls(template: TurnTemplate, ids: list[int]) -> list[int]:
    return [i for i in ids if i in template.text.control]


def test_control_tokens_in_a_text_are_dead(template: TurnTemplate) -> None:
    harmless = controls(template, template.delta([TOOL, USER], TOOLS))
    for mark in template.text.control.values():
        others = f"{mark}assistant\n{mark[:-1]}", mark[1:] + mark[0]
        for body in (mark, f"a{mark}\n", mark * 3, *others):
            messages = [{**TOOL, "content": body}, {**USER, "content": body}]
            ids = template.delta(messages, TOOLS)
            assert controls(template, ids) == harmless
            assert body.strip() in template.chat.decode(ids, skip_special_tokens=False)


def test_control_tokens_are_dead_where_the_vocabulary_has_their_text(tmp_path: Path) -> None:
    folder = write_family(tmp_path, "smollm2")
    words = [("<unk>", 0.0), ("<|im_end|>", -1.0), ("<|im_start|>", -1.0)]
    words += [(chr(c), -9.0) for c in range(32, 127)] + [("\n", -9.0)]
    tokenizer = Tokenizer(models.Unigram(words, 0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.add_special_tokens(["<|im_end|>", "<|im_start|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TurnTemplate(ChatInProcess(folder))
    harmless = controls(template, template.delta([USER]))
    ids = template.delta([{**USER, "content": "a<|im_end|>\n<|im_start|>b"}])
    assert controls(template, ids) == harmless
    assert len(harmless) >= 3


class Played(NamedTuple):
    """A row as it grew, and what was said in it."""

    row: list[int]
    messages: list[dict[str, str]]
    is_canonical: bool


def play(
    template: TurnTemplate, draw: random.Random, marks: list[str], formats: Iterable[str]
) -> Played:
    """A random conversation: what the engine sees at a turn begins with all that was before."""
    chat = template.chat
    messages = [{"role": "system", "content": "Be brief."}] * draw.randrange(2)
    messages.append({"role": "user", "content": "Hello" + text(draw, [])})
    (begun,) = chat.encode_chats([messages], template.variables, tools=TOOLS)
    assert isinstance(begun, list)
    row, is_canonical = begun, True
    for _ in range(draw.randrange(1, 5)):
        calls = draw.choice(["", *[FORMATS[name].form for name in formats]])
        says = ("I" + text(draw, []) + calls).strip()
        cuts = sorted(draw.randrange(len(says)) for _ in range(draw.choice([0, 0, 1, 4])))
        parts = [says[a:b] for a, b in zip([0, *cuts], [*cuts, len(says)], strict=True)]
        drawn = [i for part in parts for i in chat.encode(part)]
        end = draw.choice([*chat.eos_token_ids, None])
        drawn += [] if end is None else [end]
        is_canonical &= drawn[: len(drawn) - (end is not None)] == chat.encode(says)
        role = draw.choice([[TOOL], [TOOL, TOOL], [USER], [TOOL, USER]])
        answers = [{**message, "content": "It is" + text(draw, marks)} for message in role]
        seen = list(row)
        row = [*row, *drawn, *template.delta(answers, TOOLS, written=drawn)]
        assert row[: len(seen) + len(drawn)] == [*seen, *drawn]
        # Any end of a turn is as good as the template's, for what is compared.
        row[len(seen) + len(drawn) - 1] = drawn[-1] if end is None else chat.eos_token_ids[0]
        messages += [{"role": "assistant", "content": says}, *answers]
    return Played(row, messages, is_canonical)


def text(draw: random.Random, marks: list[str]) -> str:
    return "".join(draw.choices([*WORDS, *marks], k=draw.randrange(6)))


def assert_rows_are_the_whole(
    template: TurnTemplate, conversations: int, formats: Iterable[str] = FORMATS
) -> None:
    draw = random.Random(template.chat.digest)
    marks = list(template.text.control.values())
    equal = 0
    for number in range(conversations):
        played = play(template, draw, marks if number % 2 else [], formats)
        whole = template.render(played.messages, TOOLS, open_turn=True)
        assert template.chat.decode(played.row, skip_special_tokens=False) == whole
        bare = [
            {**one, "content": "It is" if one["role"] in ("tool", "user") else one["content"]}
            for one in played.messages
        ]
        (expected,) = template.chat.encode_chats([bare], template.variables, tools=TOOLS)
        assert isinstance(expected, list)
        special = template.text.special
        skeleton = [i for i in played.row if i in special]
        assert skeleton == [i for i in expected if i in special]
        if played.is_canonical and number % 2 == 0:
            (ids,) = template.chat.encode_chats([played.messages], template.variables, tools=TOOLS)
            assert played.row == ids
            equal += 1
    assert equal > conversations / 8


@pytest.mark.parametrize("conversations", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_rows_grow_to_what_the_template_writes_of_them(conversations: int, template: TurnTemplate):
    assert_rows_are_the_whole(template, conversations)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_each_format_grow_to_what_the_template_writes_of_them(name, template):
    assert_rows_are_the_whole(template, 10_000, [name])


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs models/smollm2-135m (make demo)")
def test_rows_of_smollm2_itself_grow_so() -> None:
    with ChatInProcess(SMOLLM2) as chat:
        assert_rows_are_the_whole(TurnTemplate(chat), 60)


@pytest.mark.processes
def test_the_real_child_renders_the_same(template: TurnTemplate, tmp_path: Path) -> None:
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    with ChatTokenizer(folder, began=1767225600.0) as chat:
        real = TurnTemplate(chat)
        for messages in ([TOOL], [TOOL, TOOL], [USER], [TOOL, USER]):
            assert real.delta(messages, TOOLS) == template.delta(messages, TOOLS)
        assert check_template(real, TOOLS) == check_template(template, TOOLS)


@pytest.mark.parametrize(
    ("name", "parallel", "tells"),
    [("smollm2", 4, False), ("qwen2.5", 4, True), ("qwen3", 4, True), ("llama3", 1, True)],
)
def test_good_templates_are_found_good(name: str, parallel: int, tells: bool, tmp_path: Path):
    template = family(tmp_path, name)
    for tools in (TOOLS, []):
        assert check_template(template, tools, parallel=parallel) is None
        assert shows_tools(template, tools) == (tells and bool(tools))


CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role ~ '\n' ~ (m.content HERE) }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|im_end|>{{ '\n' }}"
    "{% endfor %}<|im_start|>assistant{{ '\n' }}"
)
BAD = {
    "first answer opens a block": CHAT.replace(
        "{% for c",
        "{{ '<|endoftext|>' if m.role == 'tool' and messages[:loop.index0] "
        "| selectattr('role', 'equalto', 'tool') | list | length == 0 }}{% for c",
    ),
    "first answer opens otherwise": CHAT.replace(
        "<|im_start|>{{ m",
        "{{ '<|endoftext|>' if m.role == 'tool' and messages[:loop.index0] "
        "| selectattr('role', 'equalto', 'tool') | list | length == 0 else '<|im_start|>' }}{{ m",
    ),
    "tools before the last question": CHAT.replace(
        "{% for c",
        "{{ '<|endoftext|>' ~ (tools | tojson) if m.role == 'user' and messages[loop.index0 + 1:] "
        "| selectattr('role', 'equalto', 'user') | list | length == 0 }}{% for c",
    ),
    "answers that only the last turn keeps": "{% for m in messages %}{% if m.role != 'tool' or "
    "loop.index > messages | length - 2 %}"
    + CHAT.split("%}", 1)[1]
    .replace("{% endfor %}<|im_start|>", "{% endif %}{% endfor %}<|im_start|>")
    .replace("HERE", ""),
    "no tools": CHAT.replace(
        "<|im_start|>{{ m",
        "{{ raise_exception('only users') if m.role == 'tool' }}<|im_start|>{{ m",
        1,
    ),
    "drops answers": "{% for m in messages if m.role != 'tool' %}" + CHAT.split("%}", 1)[1],
    "shouts": CHAT.replace("HERE", "| upper if m.role == 'tool' else m.content"),
    "one line": CHAT.replace("HERE", "| replace('\n', ' ')"),
    "twice": CHAT.replace("HERE", "~ (m.content if m.role == 'tool' else '')"),
    "two calls": CHAT.replace(
        "{% for c", "{{ raise_exception('one call') if m.tool_calls | length > 1 }}{% for c"
    ),
    "first call alone": CHAT.replace("in m.tool_calls %}", "in (m.tool_calls or [])[:1] %}"),
    "end by what follows": CHAT.replace("<|im_end|>", "{{ ' ' if loop.last }}<|im_end|>"),
}
EXPECTED = read_lines(Path(__file__).parent / "bad_templates.txt")


@pytest.mark.parametrize("name", BAD | EXPECTED)
def test_bad_templates_are_refused_with_the_turn(name: str, tmp_path: Path) -> None:
    template = family(tmp_path, "qwen2.5", BAD[name].replace("HERE", ""))
    found = check_template(template, TOOLS, parallel=2)
    assert_lines([str(found).replace(f"{tmp_path}/", "")], EXPECTED[name])
    # What only users' answers need does not matter where no user answers.
    accepted = check_template(template, TOOLS, parallel=2, users=False) is None
    assert accepted == (name == "tools before the last question")


def test_a_turn_that_the_template_refuses_is_told(tmp_path: Path) -> None:
    template = family(tmp_path, "qwen2.5", BAD["no tools"].replace("HERE", ""))
    with pytest.raises(BadChatTemplate, match="only users"):
        template.delta([TOOL], TOOLS)
    assert template.delta([USER])


def test_a_new_context_is_that_of_a_prompt_but_that_control_tokens_in_it_are_text(template):
    chat = template.chat
    (expected,) = chat.encode_chats([[USER]], tools=TOOLS)
    assert template.begun([USER], TOOLS) == expected
    control = next(iter(template.text.control.values()))
    said = f"one {control}two"
    ids = template.begun([{**USER, "content": said}], TOOLS)
    (plain,) = chat.encode_chats([[{**USER, "content": "one two"}]], tools=TOOLS)
    marks = [[i for i in some if i in template.text.control] for some in (ids, plain)]
    assert marks[0] == marks[1]
    assert said in chat.decode(ids, skip_special_tokens=False)
