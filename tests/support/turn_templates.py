"""Chat templates of real families in short forms of our own, and tokenizers that know their marks.

They write what the publishers' templates write of conversations in text (system, user, assistant
with and without calls, tool), for the variables that tests use.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from prompt_files import CHATML
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ppojob_trainer.data.chat import ChatTokenizer, Tools
from ppojob_trainer.data.template_child import compile_template, refused, render
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages
from ppojob_trainer.json_value import Json

_QWEN_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{% for tool in tools %}{{ '\\n' ~ tool | tojson }}{% endfor %}{{ '\\n' }}</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>{{ '\\n' }}"""

_QWEN_CALLS = """\
{% for call in m.tool_calls %}{{ '\\n' if m.content or not loop.first or LEAD }}\
<tool_call>{{ '\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}\
{{ (call.function.arguments | tojson) ~ '}\\n' }}</tool_call>{% endfor %}"""

_QWEN_ANSWER = """\
{{ '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}\
{{ '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}\
{{ '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}"""

QWEN25 = (
    "{% set first = messages[0].role == 'system' %}<|im_start|>system{{ '\\n' }}"
    "{{ messages[0].content if first else "
    "'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}"
    "{% if tools %}{{ '\\n\\n' }}" + _QWEN_TOOLS + "{% else %}<|im_end|>{{ '\\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}" + _QWEN_ANSWER + "{% elif m.tool_calls %}"
    "<|im_start|>assistant{{ '\\n' ~ m.content if m.content }}"
    + _QWEN_CALLS.replace("LEAD", "true")
    + "{{ '<|im_end|>\\n' }}{% elif m.role != 'system' or not loop.first %}"
    "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
)

QWEN3 = (
    "{% set first = messages[0].role == 'system' %}"
    "{% if first or tools %}<|im_start|>system{{ '\\n' ~ (messages[0].content if first else '') }}"
    "{% if tools %}{{ '\\n\\n' if first }}" + _QWEN_TOOLS + "{% else %}<|im_end|>{{ '\\n' }}"
    "{% endif %}{% endif %}{% set asked = namespace(at=messages | length - 1) %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' and not (m.content.startswith('<tool_response>') "
    "and m.content.endswith('</tool_response>')) %}{% set asked.at = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}" + _QWEN_ANSWER + "{% elif "
    "m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% set thought = parts[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') "
    "if parts | length > 1 else '' %}"
    "{% set thought = m.reasoning_content if m.reasoning_content is string else thought %}"
    "{% set said = parts[-1].lstrip('\\n') if parts | length > 1 else m.content %}"
    "<|im_start|>assistant{{ '\\n' }}{% if loop.index0 > asked.at and (loop.last or thought) %}"
    "{{ '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' ~ said.lstrip('\\n') }}"
    "{% else %}{{ said }}{% endif %}"
    + _QWEN_CALLS.replace("m.content or not loop.first or LEAD", "said or not loop.first")
    + "{{ '<|im_end|>\\n' }}{% elif m.role != 'system' or not loop.first %}"
    "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)

LLAMA3 = """\
{% macro head(role) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{% endmacro %}
{{- bos_token ~ head('system') ~ ('Environment: ipython\\n' if tools) }}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ strftime_now('%d %b %Y') ~ '\\n\\n' }}
{%- set first = messages[0].role == 'system' %}
{{- (messages[0].content | trim if first else '') ~ '<|eot_id|>' }}
{%- set rest = messages[1:] if first else messages %}
{%- if tools %}{{ head('user') }}
    {{- 'Given the following functions, please respond with a JSON for a function call ' }}
    {{- 'with its proper arguments that best answers the given prompt.\\n\\n' }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument ' }}
    {{- 'name and its value}.Do not use variables.\\n\\n' }}
    {%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
    {{- rest[0].content | trim ~ '<|eot_id|>' }}{% set rest = rest[1:] %}
{%- endif %}
{%- for m in rest %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- head('assistant') ~ '{"name": "' ~ f.name ~ '", "parameters": ' }}
        {{- f.arguments | tojson }}}<|eot_id|>
    {%- elif m.role == 'tool' %}{{ head('ipython') ~ (m.content | tojson) ~ '<|eot_id|>' }}
    {%- else %}{{ head(m.role) ~ (m.content | trim) ~ '<|eot_id|>' }}{% endif %}
{%- endfor %}
{{- head('assistant') if add_generation_prompt }}"""

_QWEN_MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_QWEN_SPECIAL = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
_LLAMA_SPECIAL = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    "<|begin_of_text|>",
)
FAMILIES: dict[str, tuple[str, Sequence[str], Sequence[str], int]] = {
    "smollm2": (CHATML, _QWEN_SPECIAL, (), 1),
    "qwen2.5": (QWEN25, _QWEN_SPECIAL, _QWEN_MARKS[:2], 2),
    "qwen3": (QWEN3, _QWEN_SPECIAL, _QWEN_MARKS, 2),
    "llama3": (LLAMA3, _LLAMA_SPECIAL, (), 3),
}
"""Template, special tokens (those that end a turn first), other added tokens, number of ends."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


class ChatInProcess(ChatTokenizer):
    """Renders harmless templates without a process, and counts the conversations: `rendered`."""

    rendered = 0

    @functools.cached_property
    def _compiled(self) -> jinja2.Template:
        return compile_template(
            self.template[0], datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        )

    def render_chats(
        self,
        conversations: Sequence[Messages],
        variables: Mapping[str, Json] | None = None,
        *,
        tools: Tools | None = None,
        open_turn: bool = True,
    ) -> list[str | BadChatTemplate]:
        _, file = self.template
        self.rendered += len(conversations)
        given = {**self._files.special_tokens, **(variables or {})}
        if tools:
            given["tools"] = [dict(tool) for tool in tools]
        texts: list[str | BadChatTemplate] = []
        for messages in conversations:
            try:
                talk = [dict(message) for message in messages]
                texts.append(render(self._compiled, talk, given, open_turn=open_turn))
            except Exception as error:
                refusal = refused(error).refusal
                texts.append(BadChatTemplate(f"{file}: got {refusal}: refused; another"))
        return texts


def write_family(folder: Path, name: str, template: str | None = None) -> Path:
    """A folder with the tokenizer of a family, which has a word or two."""
    source, special, marks, ends = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "user assistant system tool_call answer \n\n \n name arguments end im_end think"
    tokenizer.train_from_iterator([words] * 5, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in marks])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"eos_token": special[0], "bos_token": special[-1], "pad_token": special[1]}
    config = {**tokens, "chat_template": template or source}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    end_ids = [tokenizer.token_to_id(text) for text in special[:ends]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end_ids}))
    return folder
