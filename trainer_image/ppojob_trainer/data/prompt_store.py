"""Prompt store: rows between files and steps, checked and tokenised once, found by number."""

import base64
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ppojob_trainer import durable
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.media.pictures import LaterPicture, unpacked, with_parts
from ppojob_trainer.json_value import Json

_PREFIX = "ppojob-prompts-"

Prompt = str | list[dict[str, Json]]
"""Text, or chat messages."""


class AnswerPart(NamedTuple):
    """Consecutive tokens of an answer that one side wrote, and the pictures that they show.

    Pictures begin where the whole answer counts their first token.
    """

    tokens: tuple[int, ...]
    is_trained: bool
    pictures: tuple[LaterPicture, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt and what its reward needs.

    Attributes:
        index: its number in the data set: ``dataset[row.index]`` is this row. A row that is not yet
            in a data set has -1, and no tokens.
        token_ids: the prompt as the model gets it, cut where that is the policy.
        prompt: the same as the file has it.
        data_source: selects the reward function.
        ground_truth: what the reward compares with; of answers that are given whether one is good,
            or the margin of two; None where the row has none of these.
        extra_info: other data of the row, for its reward and its tools.
        agent: who answers in it; empty where rows are no conversations.
        answers: what the policy learns to answer, of two the better one first; or responses that
            are given beside its own samples; empty without any.
        pictures: those of the prompt and clips of videos, as `pictures.packed` has them.
        teacher_prompt: what the reference reads in its place, as the file has it; None where it
            reads the prompt. It is not kept.
        teacher_token_ids: its tokens, cut as those of the prompt.
        known_scores: scores of earlier responses; empty without any.
    """

    index: int
    token_ids: tuple[int, ...]
    prompt: Prompt
    data_source: str
    ground_truth: Json
    extra_info: Mapping[str, Json]
    agent: str = ""
    answers: tuple[tuple[AnswerPart, ...], ...] = ()
    pictures: bytes = b""
    teacher_prompt: Prompt | None = None
    teacher_token_ids: tuple[int, ...] = ()
    known_scores: tuple[float, ...] = ()

    @property
    def asks(self) -> str:
        """Return the digest of the prompt: rows of the same tokens and pictures have the same."""
        digest = hashlib.blake2b(json.dumps(self.token_ids).encode(), digest_size=8)
        digest.update(self.pictures)
        return digest.hexdigest()

    @property
    def shown_prompt(self) -> Prompt:
        """The prompt as a template takes it, with its pictures in their places."""
        if not self.pictures or isinstance(self.prompt, str):
            return self.prompt
        return with_parts(self.prompt, unpacked(self.pictures))


class PromptStore(Closeable):
    """Rows in a temporary file that has no name; eight bytes a row are in memory.

    Raises:
        StorageError: there is no room for temporary files.
    """

    def __init__(self) -> None:
        self._ends = array("q", [0])
        try:
            self._file = tempfile.TemporaryFile(prefix=_PREFIX)  # noqa: SIM115  close()
        except OSError as error:
            _raise(error)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._ends) - 1

    def append(self, row: PromptRow) -> None:
        """Keep a row, whose index is the number of those before it.

        Raises:
            StorageError: there is no room for it.
        """
        assert row.index == len(self), "rows are numbered in their order"
        told = row.data_source, row.ground_truth, row.extra_info, row.agent
        pictures = base64.b64encode(row.pictures).decode()
        answers = [[_plain(part) for part in answer] for answer in row.answers]
        more = row.teacher_token_ids, row.known_scores
        kept = [row.token_ids, row.prompt, *told, answers, pictures, *more]
        text = json.dumps(kept, separators=(",", ":")).encode()
        try:
            self._file.write(text)
        except OSError as error:
            _raise(error)
        self._ends.append(self._ends[-1] + len(text))

    def __getitem__(self, index: int) -> PromptRow:
        """A row by its number.

        Raises:
            IndexError: there is no such row.
            StorageError: there was no room for what was appended.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a data set of {len(self)} rows")
        try:
            self._file.flush()
            begin, end = self._ends[index], self._ends[index + 1]
            kept: list[Any] = json.loads(os.pread(self._file.fileno(), end - begin, begin))
        except OSError as error:
            _raise(error)
        token_ids, prompt, source, truth, info, agent, given, encoded, taught, scores = kept
        answers = tuple(
            tuple(
                AnswerPart(tuple(tokens), trained, _shown(later))
                for tokens, trained, later in parts
            )
            for parts in given
        )
        told, pictures = (source, truth, info, agent), base64.b64decode(encoded)
        row = PromptRow(index, tuple(token_ids), prompt, *told, answers, pictures)
        if not taught and not scores:
            return row
        return replace(row, teacher_token_ids=tuple(taught), known_scores=tuple(scores))

    def rows(self, indices: Iterable[int]) -> list[PromptRow]:
        """Several rows, in the order of their numbers as given."""
        return [self[index] for index in indices]

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()


def _plain(part: AnswerPart) -> list[Json]:
    later: list[Json] = [[one.start, base64.b64encode(one.file).decode()] for one in part.pictures]
    return [list(part.tokens), part.is_trained, later]


def _shown(later: list[tuple[int, str]]) -> tuple[LaterPicture, ...]:
    return tuple(LaterPicture(start, base64.b64decode(file)) for start, file in later)


def _raise(error: OSError) -> None:
    durable.raise_storage_error(Path(tempfile.gettempdir()) / _PREFIX, "write", error)
