"""SGLang's `/generate` API, which some of verl's reward functions call, mapped to vLLM's server."""

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
"""vLLM's names of SGLang's sampling parameters."""
_DEFAULTS: Final = {"max_tokens": 128, "temperature": 1.0}


class NotThere(ValueError):  # noqa: N818
    """The request asks for something that is not supported."""


def as_completion(body: bytes, model: str) -> bytes:
    """Convert a request for vLLM's server.

    Raises:
        NotThere: it is no request of one prompt, or has unknown parameters.
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
    """Convert the answer to SGLang's format."""
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
