"""Prompt store: the tokenised rows of a dataset, in a temporary file, by number."""

import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.media.images import LaterImage, unpacked, with_parts
from ppojob_trainer.json_value import Json

_PREFIX = "ppojob-prompts-"

Prompt = str | list[dict[str, Json]]
"""Text, or chat messages."""


class AnswerPart(NamedTuple):
    """Consecutive tokens of an answer by one author, with their images.

    The positions of images are relative to the whole answer.
    """

    tokens: tuple[int, ...]
    is_trained: bool
    images: tuple[LaterImage, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt and what its reward needs."""

    # Number in the dataset: ``dataset[row.index]`` is this row. -1 for a row that is not in a
    # dataset yet, which has no tokens.
    index: int
    token_ids: tuple[int, ...]  # of the prompt, truncated if that is the policy for long prompts
    prompt: Prompt
    data_source: str
    # Input of the reward; for a given answer whether it is good, for a pair its margin; None if the
    # row has none of these.
    ground_truth: Json
    extra_info: Mapping[str, Json]
    agent: str = ""  # name of the row's agent; empty in jobs without agents
    # Answers to train on, of a pair the chosen one first; or given responses that join the sampled
    # ones; empty without any.
    answers: tuple[tuple[AnswerPart, ...], ...] = ()
    images: bytes = b""  # media files of the prompt, as by `images.packed`
    # Prompt of the reference as in the file; None if it reads `prompt`. It is not stored.
    teacher_prompt: Prompt | None = None
    teacher_token_ids: tuple[int, ...] = ()  # its token ids, truncated likewise
    known_scores: tuple[float, ...] = ()  # scores of earlier responses; empty without any

    @property
    def prompt_digest(self) -> str:
        """Return a digest of the prompt's tokens and images, in hex."""
        digest = hashlib.blake2b(json.dumps(self.token_ids).encode(), digest_size=8)
        digest.update(self.images)
        return digest.hexdigest()

    @property
    def prompt_with_media(self) -> Prompt:
        """Return the prompt as a chat template takes it, with parts for its media."""
        if not self.images or isinstance(self.prompt, str):
            return self.prompt
        return with_parts(self.prompt, unpacked(self.images))


_FORMS: Final[dict[str, Any]] = {
    "token_ids": tuple[int, ...],
    "answers": tuple[tuple[AnswerPart, ...], ...],
    "images": bytes,
    "teacher_token_ids": tuple[int, ...],
    "known_scores": tuple[float, ...],
}
"""Types of the columns that JSON stores as others."""
_decode: Final = msgspec.json.Decoder().decode


class PromptStore(Closeable):
    """Rows in an unnamed temporary file; eight bytes per row are in memory."""

    def __init__(self) -> None:
        self._ends = array("q", [0])
        try:
            self._file = tempfile.TemporaryFile(prefix=_PREFIX)  # noqa: SIM115  close()
        except OSError as error:
            _raise(error)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, row: PromptRow) -> None:
        """Store a row, whose index is the number of rows before it."""
        assert row.index == len(self), "rows are numbered in order"
        text = msgspec.json.encode(row)
        try:
            self._file.write(text)
        except OSError as error:
            _raise(error)
        self._ends.append(self._ends[-1] + len(text))

    def __getitem__(self, index: int) -> PromptRow:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a dataset of {len(self)} rows")
        try:
            self._file.flush()
            begin, end = self._ends[index], self._ends[index + 1]
            columns: dict[str, Any] = _decode(os.pread(self._file.fileno(), end - begin, begin))
        except OSError as error:
            _raise(error)
        typed = {name: msgspec.convert(columns[name], form) for name, form in _FORMS.items()}
        return PromptRow(**{**columns, **typed})

    def rows(self, indices: Iterable[int]) -> list[PromptRow]:
        """Read several rows, in the order of the given numbers."""
        return [self[index] for index in indices]

    def close(self) -> None:
        self._file.close()


def _raise(error: OSError) -> None:
    durable.raise_storage_error(Path(tempfile.gettempdir()) / _PREFIX, "write", error)
