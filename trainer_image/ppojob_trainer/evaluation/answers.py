"""Reads responses from files: rows of a run, or the output of verl's main_generation.

A row of a run is one response (`rows.row_files`). A row of verl is a prompt with `responses` (or
one `response`) and the columns of prompt data.
"""

import contextlib
import glob
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from ppojob_api.problem import printable, shown
from ppojob_api.run_layout import JOB_FILE, RESPONSES_FILE
from ppojob_api.v1alpha1.data import DataFile, DataSpec
from ppojob_trainer.data.columns import EXTRA_COLUMN, REWARD_COLUMN, read_row
from ppojob_trainer.data.file_checks import listed_columns, open_row_file
from ppojob_trainer.data.formats import ParquetRows, Row
from ppojob_trainer.data.problems import BadCell, DataProblem, Findings
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.rollout import OF_DATA

VALIDATION_FOLDER: Final = "validation"
RESPONSES: Final = "responses"

_RESPONSE: Final = "response"
_ENDINGS: Final = (".parquet", ".jsonl", ".ndjson", ".json")
_WANTED: Final = (
    "response, as in rollouts/ and validation/ of a run, or responses, a list a prompt, as "
    "`ppojob generate` and verl's main_generation write"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response and its row."""

    place: str  # ``file:row``, for messages
    step: int | None  # step of the run; None if the file has no steps
    prompt: int
    sample: int
    prompt_text: str  # the prompt, messages as JSON
    data_source: str
    response: str
    ground_truth: Json
    extra_info: Mapping[str, Json]
    tokens: int | None = None  # length of the response; None if unknown
    is_truncated: bool = False
    figures: str | None = None  # turns and calls as JSON; None for single-turn rows
    # Score and further values (JSON) in the file, or None.
    recorded: tuple[float, str] | None = None
    is_in_list: bool = False  # whether its row has a list of responses

    @property
    def response_place(self) -> str:
        """Return ``file:row``, with the index in a list of responses."""
        return f"{self.place}:{RESPONSES}[{self.sample}]" if self.is_in_list else self.place


class _Segment(msgspec.Struct):
    version: int | None = None


class _RunRow(msgspec.Struct):
    step: int | None
    row: int
    prompt_id: int
    sample: int
    data_source: str
    prompt: str
    response: str
    ground_truth: str | None
    score: float
    response_tokens: int | None
    truncated: bool
    extra_info: str = "{}"
    reward_values: str = "{}"
    figures: str | None = None
    truth_is_json: bool | None = None
    segments: list[_Segment] | None = None


_READ: Final = (*_RunRow.__struct_fields__, RESPONSES, REWARD_COLUMN)
# The prompt is not used here.
_COLUMNS: Final = DataSpec(train=(DataFile(path="-"),), max_prompt_tokens=1, max_response_tokens=1)
_ANY_PROMPT: Final = {_COLUMNS.prompt_key: "-"}

_Place = tuple[str, str, int]
"""Sort key: folder, file and row; the row numbers of a run continue over the parts of a folder."""


def read_answers(path: Path) -> dict[int | None, list[Answer]]:
    """Read all responses of a file, a folder, a pattern, or a run folder's validations, by step.

    Those of a step are in the order of the run, so that means have the same bits. ConfigError has
    one line per problem.
    """
    errors, found = Findings(), list[tuple[_Place, _Place, Answer]]()
    for file in _files(path):
        found += _answers_of(file, errors)
    if errors:
        raise ConfigError(errors.lines())
    if not found:
        raise ConfigError(f"{path}: got no rows: there is nothing to score; at least one")
    numbers: dict[_Place, int] = {}
    steps: dict[int, list[Answer]] = {}
    for _, prompt, answer in sorted(found, key=lambda one: one[0]):
        number = numbers.setdefault(prompt, len(numbers))
        step = -1 if answer.step is None else answer.step
        steps.setdefault(step, []).append(replace(answer, prompt=number))
    return {None if step < 0 else step: answers for step, answers in sorted(steps.items())}


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    named = [path] if path.exists() else [Path(name) for name in glob.glob(str(path))]
    found: list[Path] = []
    for one in named:
        folder = one / VALIDATION_FOLDER if (one / VALIDATION_FOLDER).is_dir() else one
        if folder == one and (one / JOB_FILE).is_file():
            folder = one / RESPONSES_FILE
            if not folder.is_file():
                raise ConfigError(
                    f"{one}: got a run folder without {VALIDATION_FOLDER}/: the job has answered "
                    f"no held-out rows; {one / 'rollouts'} where it has drawn responses, what "
                    "`ppojob generate` makes with its export, or a file of rows"
                )
        if (one / "config.json").is_file():
            raise ConfigError(
                f"{one}: got the folder of a model: responses are scored, without a model; rows "
                "that `ppojob generate` draws with it, or a run folder"
            )
        inside = folder.rglob("[!.]*") if folder.is_dir() else [folder]
        found += [file for file in inside if file.name.endswith(_ENDINGS) and file.is_file()]
    if not found:
        got = "no file of rows in it" if named else "no such file"
        raise ConfigError(
            f"{path}: got {got}: looked for in {Path.cwd()}; a parquet or JSON-lines file, a "
            "folder or a pattern of them, or a run folder"
        )
    return sorted(found)


def _answers_of(file: Path, errors: Findings) -> Iterator[tuple[_Place, _Place, Answer]]:
    """Yield sort key, sort key of the prompt, and response for each response of a file."""
    opened = open_row_file(str(file), _READ)
    if isinstance(opened, DataProblem):
        errors.add(opened)
        return
    if isinstance(opened, ParquetRows) and not {_RESPONSE, RESPONSES} & set(opened.columns):
        errors.add(_no_responses(str(file), pq.read_schema(file).names))
        opened.close()
        return
    for number, cells in enumerate(opened.rows()):
        place = opened.place(number)
        if isinstance(cells, DataProblem):
            errors.add(cells, file=str(file))
            continue
        try:
            yield from _answers(cells, file, number, place)
        except BadCell as bad:
            wrong = replace(bad.problem, where=f"{place}:{bad.problem.where}")
            errors.add(wrong, file=str(file), column=bad.problem.where)
    opened.close()


def _answers(
    cells: Row, file: Path, number: int, place: str
) -> Iterator[tuple[_Place, _Place, Answer]]:
    """Yield the responses of a row of either form."""
    folder = str(file.parent)
    if _RESPONSE in cells and "row" in cells and "prompt_id" in cells:
        try:
            row = msgspec.convert(dict(cells), _RunRow)
            answer = _of_run(row, place)
        except (msgspec.MsgspecError, ValueError) as error:
            why, allowed = printable(str(error)), "a row as a run has written it"
            raise BadCell("row", "columns of a run", why, allowed) from None
        # Demonstrations in the data say nothing about the policy.
        if all(segment.version != OF_DATA for segment in row.segments or ()):
            yield (folder, "", row.row), (folder, "", row.prompt_id), answer
        return
    here = (folder, file.name, number)
    for answer in _of_verl(cells, place):
        yield here, here, answer


def _of_run(row: _RunRow, place: str) -> Answer:
    text, is_json = row.ground_truth, row.truth_is_json
    if is_json is None:  # written by an earlier version
        is_json = text is not None and text.startswith(("{", "["))
    return Answer(
        place=place,
        step=row.step,
        prompt=row.prompt_id,
        sample=row.sample,
        prompt_text=row.prompt,
        data_source=row.data_source,
        response=row.response,
        ground_truth=json.loads(text) if is_json and text is not None else text,
        extra_info=json.loads(row.extra_info),
        tokens=row.response_tokens,
        is_truncated=row.truncated,
        figures=row.figures,
        recorded=None if math.isnan(row.score) else (row.score, row.reward_values),
    )


def _of_verl(cells: Row, place: str) -> Iterator[Answer]:
    given = cells.get(RESPONSES, cells.get(_RESPONSE))
    if RESPONSES not in cells and _RESPONSE not in cells:
        missing = _no_responses(place, list(map(str, cells)))
        raise BadCell(RESPONSES, missing.got, missing.why, missing.allowed)
    responses = [given] if isinstance(given, str) else given
    if not isinstance(responses, list) or not responses:
        why = "there is nothing to score"
        raise BadCell(RESPONSES, shown(given), why, "text, or a list of texts")
    prompt = cells.get(_COLUMNS.prompt_key)
    prompt_text = prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)
    info = cells.get(EXTRA_COLUMN)
    if isinstance(info, str):  # `rows.row_files` writes what parquet cannot hold as JSON
        with contextlib.suppress(ValueError):
            info = json.loads(info)
    cells = {**cells, **_ANY_PROMPT, EXTRA_COLUMN: info}
    row = read_row(cells, _COLUMNS, has_agents=False)
    for sample, response in enumerate(responses):
        if not isinstance(response, str):
            where = f"{RESPONSES}[{sample}]"
            raise BadCell(where, shown(response), "a response is text", "text")
        yield Answer(
            place=place,
            step=None,
            prompt=0,
            sample=sample,
            prompt_text=prompt_text,
            data_source=row.data_source,
            response=response,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
            is_in_list=not isinstance(given, str),
        )


def _no_responses(where: str, columns: list[str]) -> DataProblem:
    why = f"the columns are {listed_columns(columns)}"
    return DataProblem(f"{where}:{RESPONSES}", "no such column", why, _WANTED)
