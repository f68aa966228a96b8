"""Sentence encoders of transformers, on the CPU: texts to unit vectors.

As in Search-R1's ``retrieval_server.py``: a prefix, and the last hidden states, pooled and
normalised.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from ppojob_api.problem import printable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.models.weight_files import BadHeader
from ppojob_trainer.retrieval.manifest import EncoderSettings

Pooling = Literal["mean", "cls"]

PREFIXES: Final = {
    "e5": ("query: ", "passage: "),
    "bge": ("Represent this sentence for searching relevant passages: ", ""),
}
"""Prefixes of queries and of passages, by a part of the folder's name."""

_MAX_TOKENS: Final = 256
_BATCH: Final = 32
_NEEDED: Final = ("config.json", "tokenizer_config.json", "*.safetensors")
_POOLING_FILE: Final = "1_Pooling/config.json"
_UNUSED: Final = "pooler."
"""Weights that many files lack, and no pooling uses."""


def encoder_settings(
    folder: Path,
    *,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
) -> EncoderSettings:
    """Return the settings of an encoder in a Hugging Face folder.

    By default, the prefixes depend on the folder's name, see `PREFIXES`, and the pooling on the
    file of sentence-transformers; without that file, it is the mean. Raises ConfigError if the
    folder has no encoder.
    """
    missing = [pattern for pattern in _NEEDED if not any(folder.glob(pattern))]
    if missing:
        got = f"no {' and no '.join(missing)}" if folder.is_dir() else "no such folder"
        why = "texts are encoded by it"
        raise ConfigError(
            f"{folder}: got {got}: {why}; the folder of a sentence encoder in Hugging Face form"
        )
    try:
        found = fingerprint(folder)
    except (OSError, BadHeader) as error:
        raise ConfigError(str(error)) from None
    name = folder.resolve().name.lower()
    prefixes = next((both for word, both in PREFIXES.items() if word in name), ("", ""))
    return EncoderSettings(
        folder=os.fspath(folder),
        fingerprint=found,
        pooling=pooling or _pooling(folder),
        query_prefix=prefixes[0] if query_prefix is None else query_prefix,
        passage_prefix=prefixes[1] if passage_prefix is None else passage_prefix,
        max_tokens=_MAX_TOKENS,
    )


class SentenceEncoder:
    """An encoder, loaded from a folder; raises ConfigError if it is not supported."""

    def __init__(self, folder: Path, settings: EncoderSettings) -> None:
        self._settings = settings
        log = transformers.utils.logging
        before = log.get_verbosity()
        log.disable_progress_bar()
        log.set_verbosity_error()  # missing weights are checked below
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True
            )
            self._model, facts = transformers.AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
            why = printable(next(iter(str(error).splitlines()), ""), 200)
            raise _refused(folder, type(error).__name__, f"it cannot be loaded: {why}") from None
        finally:
            log.set_verbosity(before)
        missing = sorted(name for name in facts["missing_keys"] if not name.startswith(_UNUSED))
        if missing:
            raise _refused(folder, f"no weights {missing[0]}", f"{len(missing)} are missing")
        if self._model.config.is_encoder_decoder:
            raise _refused(folder, "an encoder with a decoder", "texts go through one encoder")
        if self._tokenizer.pad_token_id is None:
            raise _refused(folder, "a tokenizer without a pad token", "texts are padded")
        self._model.eval()

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._model.parameters())

    def query(self, text: str) -> NDArray[np.float32]:
        """Encode one query: (hidden size,)."""
        vector: NDArray[np.float32] = self._encode([self._settings.query_prefix + text])[0]
        return vector

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode passages: (texts, hidden size); the same list has the same bits.

        Texts of similar length are batched, to reduce padding.
        """
        vectors = np.empty((len(texts), self._model.config.hidden_size), np.float32)
        by_length = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for first in range(0, len(texts), _BATCH):
            batch = by_length[first : first + _BATCH]
            vectors[batch] = self._encode(
                [self._settings.passage_prefix + texts[number] for number in batch]
            )
        return vectors

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        inputs = self._tokenizer(
            texts,
            max_length=self._settings.max_tokens,
            truncation=True,
            padding=True,
            return_tensors="pt",
        )
        hidden = self._model(**inputs).last_hidden_state
        pooled = pool(hidden, inputs["attention_mask"], self._settings.pooling)
        vectors: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        if not np.isfinite(vectors).all():
            raise ConfigError(
                f"{self._settings.folder}: got a vector that is not finite: it cannot be compared;"
                " another encoder"
            )
        return vectors


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool the vectors of tokens to vectors of texts.

    Args:
        hidden: (texts, tokens, dimensions).
        mask: (texts, tokens), 0 for padding.
        pooling: the mean of the tokens, or the first token.
    """
    if pooling == "cls":
        return hidden[:, 0]
    return hidden.masked_fill(mask[..., None] == 0, 0.0).sum(1) / mask.sum(1)[:, None]


def _pooling(folder: Path) -> Pooling:
    try:
        settings = json.loads((folder / _POOLING_FILE).read_bytes())
    except (OSError, ValueError):
        return "mean"
    is_first = isinstance(settings, dict) and settings.get("pooling_mode_cls_token") is True
    return "cls" if is_first else "mean"


def _refused(folder: Path, got: str, why: str) -> ConfigError:
    return ConfigError(f"{folder}: got {got}: {why}; a sentence encoder such as e5 or bge")
