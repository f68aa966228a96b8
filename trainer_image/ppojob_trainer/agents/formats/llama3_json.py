"""Llama 3.1 and later: the turn is `{"name": ..., "parameters": {...}}`, or several with `;`.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
"""

import json

from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools, call_of

_PYTHON = "<|python_tag|>"
_DECODER = json.JSONDecoder()


def llama3_json(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn. One that does not begin with a call has none: models quote JSON in answers."""
    rest = text.strip().removeprefix(_PYTHON).lstrip()
    calls: list[Call | BadCall] = []
    at = 0
    while rest.startswith("{", at):
        try:
            value, at = _DECODER.raw_decode(rest, at)
        except (ValueError, RecursionError) as error:
            if not calls and '"name"' not in rest:
                return ()
            calls.append(BadCall(f"a call that is no JSON: {error}"))
            break
        if not calls and "name" not in value:
            return ()
        calls.append(call_of(value, ("parameters", "arguments")))
        while at < len(rest) and rest[at] in " \n\t;,":
            at += 1
    return tuple(calls)
