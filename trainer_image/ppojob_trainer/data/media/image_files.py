"""Processor files of a model's folder that define its image format. Loads no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_trainer.data.tokenizer_files import read_tokenizer_files

PROCESSOR: Final = "preprocessor_config.json"
OF_VIDEOS: Final = "video_preprocessor_config.json"
NEWER: Final = "processor_config.json"
"""Where transformers 5 saves a whole processor."""
THINKER: Final = "thinker_config"
"""Section of Qwen-Omni's config.json for the text model; another one is for speech output."""


class _Added(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_Added]


def added_tokens(folder: Path) -> dict[str, int]:
    """Return the ids of a folder's added tokens, by text; empty if it cannot be read."""
    try:
        body = (folder / "tokenizer.json").read_bytes()
        found = msgspec.json.decode(body, type=_AddedTokens)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # other readers report it
    return {one.content: one.id for one in found.added_tokens}


def tokens_between(folder: Path, around: str, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the tokens of each text between two copies of an added token."""
    tokenizer = read_tokenizer_files(folder, folder, None).tokenizer
    between = [f"{around}{text}{around}" for text in texts]
    found = tokenizer.encode_batch_fast(between, add_special_tokens=False)
    return [tuple(one.ids[1:-1]) for one in found]


def of_thinker(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's config.json, taken from its section if it has one."""
    thinker = config.get(THINKER)
    if not isinstance(thinker, dict):
        return dict(config)
    own = {THINKER, "architectures", "tie_word_embeddings"}
    return {**{name: value for name, value in config.items() if name not in own}, **thinker}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file is missing or damaged."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # other readers report it
    return found if isinstance(found, dict) else {}
