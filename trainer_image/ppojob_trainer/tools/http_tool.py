"""Tools that a service answers over HTTP.

A call is a POST of its arguments, a JSON object. What the model gets is the body of the answer: the
text, or the JSON where its `Content-Type` says that it is some. A JSON text is that text, and an
object of `text`, and `reward` if need be, is an answer with a reward.
"""

import json
from typing import Final

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.http_calls import endpoint_problem, json_or_text, post_json
from ppojob_trainer.json_value import Json
from ppojob_trainer.tools.custom import Tool

_WITH_REWARD: Final = frozenset({"text", "reward"})


def http_tool(url: str, key_variable: str, seconds: float) -> Tool:
    """Make a tool of a service; nobody is asked yet.

    Raises:
        ConfigError: it cannot be asked.
    """
    wrong = endpoint_problem(url, key_variable, role="tools")
    if wrong is not None:
        raise ConfigError(f"source: {wrong}")

    def call(arguments: dict[str, Json], _created: dict[str, Json], _instance: str) -> object:
        answer = post_json(
            url,
            arguments,
            read=json_or_text,
            key_variable=key_variable,
            attempt_seconds=seconds,  # which ends all attempts, too
        )
        return returned(answer)

    return call


def returned(answer: Json) -> object:
    """The answer as a function returns it."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict) and answer.keys() <= _WITH_REWARD:
        text = answer.get("text")
        if isinstance(text, str):
            return text, answer.get("reward")
    return json.dumps(answer, ensure_ascii=False)
