"""Prompts and responses as text: `spec.numExamine` rows of each step."""

import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_api.problem import printable
from ppojob_trainer.controller.row_tape import BatchKey
from ppojob_trainer.rpc.messages.rollout import OF_DATA

_log = logging.getLogger(__name__)
_PART = re.compile(r"part-\d{5,}\.parquet")
_BATCH_ROWS = 64
_PROMPT_CHARACTERS: Final = 160
_PROMPT_LINES: Final = 4
_RESPONSE_CHARACTERS: Final = 600
_RESPONSE_LINES: Final = 12
_TRUTH_CHARACTERS: Final = 160


class _Segment(msgspec.Struct):
    version: int | None = None


class _Response(msgspec.Struct, kw_only=True):
    segments: list[_Segment] | None = None

    @property
    def is_given(self) -> bool:
        """Whether it came from the data."""
        return any(segment.version == OF_DATA for segment in self.segments or ())


class Place(_Response):
    """A response without its text, for selection; the score may be NaN."""

    row: int
    sample: int
    score: float


class Sample(_Response, kw_only=True):
    """A response as text, with step and purpose of its batch."""

    row: int
    prompt: str  # with the chat template's tokens
    response: str  # without special tokens
    ground_truth: str | None
    score: float
    is_truncated: bool = msgspec.field(name="truncated")  # whether a length limit ended it
    response_tokens: int | None = None
    reward_values: str | None = None  # JSON object of the reward functions' further values, if any
    step: int = 0
    purpose: str = ""


_Row = TypeVar("_Row", Place, Sample)
_VERSIONS: Final = "segments.list.element.version"
_COLUMNS: Final = {
    Place: ["row", "sample", "score", _VERSIONS],
    Sample: ["row", "prompt", "response", "ground_truth", "score", "truncated", "response_tokens",
             "reward_values", _VERSIONS],
}  # fmt: skip


def read_samples(run_folder: Path, purpose: str, step: int, count: int) -> list[Sample]:
    """Read the first response of each of a step's first prompts, then further ones.

    Generated responses come before given ones. Returns them in row order, or none if the rows are
    unreadable.
    """

    def first(places: Sequence[Place]) -> Collection[int]:
        ordered = sorted(places, key=lambda place: (place.is_given, place.sample, place.row))
        return {place.row for place in ordered[:count]}

    return chosen_samples(run_folder, BatchKey(purpose, step), first)


def chosen_samples(
    run_folder: Path, key: BatchKey, choose: Callable[[Sequence[Place]], Collection[int]]
) -> list[Sample]:
    """Read the responses of a batch that `choose` selects; see `read_samples`."""
    folder = run_folder / key.folder
    try:
        parts = sorted(path for path in folder.iterdir() if _PART.fullmatch(path.name))
        wanted = choose([place for part in parts for place in _rows(part, Place)])
        rows = (row for part in parts for row in _rows(part, Sample) if row.row in wanted)
        found = list(islice(rows, len(wanted)))  # reads no further than the last one
    except (OSError, pa.ArrowException, msgspec.ValidationError):
        return []
    for sample in found:
        sample.step, sample.purpose = key.step, key.purpose
    return sorted(found, key=lambda sample: sample.row)


def log_samples(run_folder: Path, purpose: str, step: int, count: int) -> None:
    """Log samples of a step."""
    samples = read_samples(run_folder, purpose, step, count) if count else []
    for line in (line for sample in samples for line in sample_lines(sample)):
        _log.info("%s", line)


def log_teacher_prompt(step: int, row: int, prompt: str) -> None:
    """Log the teacher's prompt of a response."""
    _log.info("--- step %d, row %d: what its teacher reads", step, row)
    for line in _block("prompt", _head(prompt[-_RESPONSE_CHARACTERS:])):
        _log.info("%s", line)


def sample_lines(sample: Sample) -> list[str]:
    """Format a sample as lines without control characters."""
    place = f"step {sample.step}" if sample.purpose == "train" else f"validation {sample.step}"
    cut = " (cut at the length limit)" if sample.is_truncated else ""
    given = " (given by the data)" if sample.is_given else ""
    score = "not scored" if math.isnan(sample.score) else f"score {sample.score:.3g}"
    return [
        f"--- {place}, row {sample.row}: {score}{cut}{given}",
        *excerpt(sample.prompt, sample.response, sample.ground_truth or ""),
    ]


def excerpt(prompt: str, response: str, ground_truth: str) -> list[str]:
    """Shorten prompt, response and ground truth to a few lines."""
    return [
        *_block("prompt", _tail(prompt.rstrip("\n"))),
        *_block("response", _head(response)),
        *_block("truth", [printable(ground_truth, _TRUTH_CHARACTERS)]),
    ]


def _rows(part: Path, form: type[_Row]) -> Iterator[_Row]:
    """Iterate over the rows of a part in small batches, with the columns of `form` only."""
    with pq.ParquetFile(part) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=_COLUMNS[form], use_threads=False):
            yield from msgspec.convert(batch.to_pylist(), list[form])  # type: ignore[valid-type]


def _block(name: str, lines: list[str]) -> list[str]:
    first, *others = lines or [""]
    block = [f"  {name:<9} {first}", *(f"  {'':<9} {line}" for line in others)]
    return [line.rstrip() for line in block]


def _tail(text: str) -> list[str]:
    kept = text[-_PROMPT_CHARACTERS:].split("\n")[-_PROMPT_LINES:]
    mark = "..." if len("\n".join(kept)) < len(text) else ""
    return [printable(line) for line in (f"{mark}{kept[0]}", *kept[1:])]


def _head(text: str) -> list[str]:
    kept = text if len(text) <= _RESPONSE_CHARACTERS else f"{text[:_RESPONSE_CHARACTERS]}..."
    lines = kept.rstrip("\n").split("\n")
    if len(lines) > _RESPONSE_LINES:
        lines = [*lines[: _RESPONSE_LINES - 1], f"... and {len(lines) - _RESPONSE_LINES + 1} lines"]
    return [printable(line) for line in lines]
