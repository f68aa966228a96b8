"""SGLang's `/generate`, which some of verl's reward functions ask, in words of vLLM's server."""

import json
from typing import Any, Final

PATH: Final = "/generate"
COMPLETIONS: Final = "/v1/completions"
_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "sampling_seed": "seed",
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos"),
            *("repetition_penalty", "frequency_penalty", "presence_penalty"),
            *("skip_special_tokens", "spaces_between_special_tokens"),
        )
    },
}
"""Of its sampling parameters, by their names there."""
_DEFAULTS: Final = {"max_tokens": 128, "temperature": 1.0}


class NotThere(ValueError):  # noqa: N818
    """What the request asks for is not to be had."""


def as_completion(body: bytes, model: str) -> bytes:
    """The request for vLLM's server.

    Raises:
        NotThere: it is no request of one prompt, or has parameters that are unknown here.
    """
    try:
        asked: Any = json.loads(body)
        sampling = asked.get("sampling_params") or {}
        told = {_NAMES[name]: value for name, value in sampling.items()}
        prompt = asked["input_ids"] if "input_ids" in asked else asked["text"]
    except (ValueError, AttributeError, TypeError, KeyError) as problem:
        allowed = f"input_ids or text, and sampling_params of {', '.join(_NAMES)}"
        raise NotThere(f"/generate: got {problem!r}: not in this version; {allowed}") from None
    given = {**_DEFAULTS, **told, "model": model, "prompt": prompt, "return_token_ids": True}
    return json.dumps(given).encode()


def as_generated(body: bytes) -> bytes:
    """The answer in SGLang's words."""
    answer = json.loads(body)
    (choice,), usage = answer["choices"], answer["usage"]
    found = {
        "text": choice["text"],
        "output_ids": choice["token_ids"],
        "meta_info": {
            "id": answer["id"],
            "finish_reason": {"type": choice["finish_reason"]},
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
        },
    }
    return json.dumps(found).encode()
