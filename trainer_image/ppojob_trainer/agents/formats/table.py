"""The table of formats."""

from ppojob_trainer.agents.formats.calls import Format
from ppojob_trainer.agents.formats.gemma import gemma
from ppojob_trainer.agents.formats.gpt_oss import gpt_oss
from ppojob_trainer.agents.formats.kimi import kimi
from ppojob_trainer.agents.formats.llama3_json import llama3_json
from ppojob_trainer.agents.formats.qwen3_coder import qwen3_coder
from ppojob_trainer.agents.formats.search_r1 import INVALID, information, search_r1
from ppojob_trainer.agents.formats.tagged import MARK, deepseek, glm, hermes, minimax, seed

FORMATS: dict[str, Format] = {
    "hermes": Format(
        hermes, '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    ),
    "gpt-oss": Format(
        gpt_oss,
        "<|channel|>commentary to=functions.add <|constrain|>json"
        '<|message|>{"a": 1, "b": 2}<|call|>',
        keeps_special_tokens=True,
    ),
    "qwen3_coder": Format(
        qwen3_coder,
        "<tool_call><function=add><parameter=a>1</parameter>"
        "<parameter=b>2</parameter></function></tool_call>",
    ),
    "glm": Format(
        glm,
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>"
        "<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>",
        keeps_special_tokens=True,
        stop_tokens=("<|observation|>",),
    ),
    "seed": Format(
        seed,
        "<seed:tool_call><function=add><parameter=a>1</parameter>"
        "<parameter=b>2</parameter></function></seed:tool_call>",
        keeps_special_tokens=True,
    ),
    "minimax": Format(
        minimax,
        '<minimax:tool_call><invoke name="add"><parameter name="a">1</parameter>'
        '<parameter name="b">2</parameter></invoke></minimax:tool_call>',
        keeps_special_tokens=True,
    ),
    "kimi": Format(
        kimi,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        '<|tool_call_argument_begin|>{"a": 1, "b": 2}<|tool_call_end|><|tool_calls_section_end|>',
        keeps_special_tokens=True,
        stop_tokens=("<|im_end|>",),
    ),
    "deepseek_v4": Format(
        deepseek,
        f'<{MARK}tool_calls><{MARK}invoke name="add"><{MARK}parameter name="a" string="false">'
        f'1</{MARK}parameter><{MARK}parameter name="b" string="false">2</{MARK}parameter>'
        f"</{MARK}invoke></{MARK}tool_calls>",
        keeps_special_tokens=True,
    ),
    "gemma4": Format(
        gemma,
        "<|tool_call>call:add{a:1,b:2}<tool_call|>",
        keeps_special_tokens=True,
        stop_tokens=("<tool_call|>",),
    ),
    "llama3_json": Format(llama3_json, '{"name": "add", "parameters": {"a": 1, "b": 2}}'),
    "search_r1": Format(
        search_r1,
        "<search>1 and 2</search>",
        stop_texts=("</search>", "</answer>"),
        answer=information,
        invalid=INVALID,
    ),
}
"""Every format by the name of `spec.agent.format`, which is verl's of `multi_turn.format`."""
