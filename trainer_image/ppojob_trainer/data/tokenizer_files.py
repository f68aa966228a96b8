"""The files of a tokenizer in a model's folder: vocabulary, special tokens, chat template.

They are read as in transformers 5 (``tokenization_utils_base.py``), so that prompts get the same
ids without loading transformers, which loads torch. Readers raise `ConfigError` for a missing or
invalid file.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.section import is_template
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

_NAMED_TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenizerFiles(NamedTuple):
    """A tokenizer on disk."""

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    """Text of "eos_token", "bos_token" and so on."""
    chat_template: str | None
    template_file: str
    """Source of the template: a file or a field."""
    end_token_ids: tuple[int, ...]
    """Tokens that end a response, the tokenizer's first."""
    pad_token_id: int | None
    """Padding token of the model's config.json."""


def read_tokenizer_files(
    model_folder: Path,
    tokenizer_folder: Path,
    template: str | None,
    setting: str = "spec.model.chatTemplate",
) -> TokenizerFiles:
    """Read a tokenizer and its chat template.

    `template` is a template or a file, in the field `setting`; None for the tokenizer's own.
    """
    config = _read_object(tokenizer_folder / "tokenizer_config.json")
    tokenizer = _read_tokenizer(tokenizer_folder / "tokenizer.json")
    special_tokens = _special_tokens(config, tokenizer_folder)
    _add_missing_tokens(tokenizer, config, special_tokens)
    source = _chat_template(config, tokenizer_folder, template, setting)
    end_token_ids = _end_token_ids(tokenizer, special_tokens, model_folder)
    pad = _read_object(model_folder / "config.json").get("pad_token_id")
    pad_token_id = pad if isinstance(pad, int) else None
    return TokenizerFiles(tokenizer, special_tokens, *source, end_token_ids, pad_token_id)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"{path}: got no tokenizer: {error}; a tokenizer.json of the tokenizers library "
            "(transformers' save_pretrained writes it)"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_object(path: Path) -> dict[str, Json]:
    """Read a JSON object; empty if the file does not exist."""
    if not os.path.isfile(path):
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: got a file that cannot be read: {error}; a JSON object"
        ) from None


def _text(value: Json) -> str | None:
    """Return the text of a token, given as text or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special_tokens(config: dict[str, Json], folder: Path) -> dict[str, str]:
    given = dict(config)
    if "added_tokens_decoder" not in config:
        given |= _read_object(folder / "special_tokens_map.json")
    found = {name: _text(given.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _add_missing_tokens(
    tokenizer: Tokenizer, config: dict[str, Json], special_tokens: Mapping[str, str]
) -> None:
    """Add tokens of the configuration that tokenizer.json lacks, in the order of their ids."""
    missing: list[AddedToken] = []
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict):
        for key in sorted(filter(str.isdecimal, listed), key=int):
            token = listed[key]
            if isinstance(token, dict) and isinstance(token.get("content"), str):
                flags = {name: bool(token.get(name)) for name in _FLAGS}
                missing.append(AddedToken(str(token["content"]), **flags))
    missing += [
        AddedToken(text, normalized=False, special=True) for text in special_tokens.values()
    ]
    known = tokenizer.get_vocab(with_added_tokens=True)
    new = {token.content: token for token in missing if token.content not in known}
    if new:
        tokenizer.add_tokens(list(new.values()))


def _chat_template(
    config: dict[str, Json], folder: Path, given: str | None, setting: str
) -> tuple[str | None, str]:
    """Return the template and its source.

    It is the given one, chat_template.jinja, that of the configuration, or chat_template.json,
    where transformers 4 stored those of vision models.
    """
    if given is not None:
        return template_text(given, setting), setting if is_template(given) else given
    own = folder / "chat_template.jinja"
    if os.path.isfile(own):
        return _read(own, f"{own}: got a file"), str(own)
    path = folder / "tokenizer_config.json"
    match config.get("chat_template"):
        case str(source):
            return source, str(path)
        case list(named):
            for entry in named:
                if isinstance(entry, dict) and entry.get("name") == "default":
                    return _text({"content": entry.get("template")}), str(path)
    older = folder / "chat_template.json"
    processors = _text(_read_object(older).get("chat_template"))
    return processors, str(path if processors is None else older)


def template_text(given: str, setting: str = "spec.model.chatTemplate") -> str:
    """Return the chat template of a setting: the text itself, or the content of a file."""
    return given if is_template(given) else _read(Path(given), f"{setting}: got {shown(given)}")


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{what}: it cannot be read: {why}; a Jinja template in UTF-8") from None


def _end_token_ids(
    tokenizer: Tokenizer, special_tokens: Mapping[str, str], model_folder: Path
) -> tuple[int, ...]:
    found: list[int] = []
    if "eos_token" in special_tokens:
        own = tokenizer.token_to_id(special_tokens["eos_token"])
        found += [] if own is None else [own]
    generation = _read_object(model_folder / "generation_config.json")
    # A chat model often ends its turn with one token and its text with another.
    listed = generation.get("eos_token_id")
    if listed is None and not found:
        listed = _read_object(model_folder / "config.json").get("eos_token_id")
    for token in listed if isinstance(listed, list) else [listed]:
        if isinstance(token, int) and token not in found:
            found.append(token)
    return tuple(found)
