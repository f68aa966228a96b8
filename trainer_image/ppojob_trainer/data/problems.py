"""What is wrong with data, in the same one line that mistakes in a manifest get."""

from dataclasses import dataclass
from enum import StrEnum

from ppojob_api.problem import printable

LISTED_PROBLEMS = 50
"""Lines of one report; what is beyond is counted."""


class DataReason(StrEnum):
    """Stable words for programs; texts may improve, these stay."""

    FILE_MISSING = "FileMissing"
    NOT_A_FILE = "NotAFile"
    NO_PERMISSION = "NoPermission"
    EMPTY_DATASET = "EmptyDataset"
    NOT_PARQUET = "NotParquet"
    DAMAGED_PARQUET = "DamagedParquet"
    BAD_LINE = "BadLine"
    BAD_PROGRAM = "BadProgram"
    NOT_UTF8 = "NotUtf8"
    COLUMN_MISSING = "ColumnMissing"
    SCHEMA_MISMATCH = "SchemaMismatch"
    EMPTY_PROMPT = "EmptyPrompt"
    BAD_PROMPT = "BadPrompt"
    BAD_VALUE = "BadValue"
    FORBIDDEN_CHARACTER = "ForbiddenCharacter"
    NON_FINITE = "NonFinite"
    GROUND_TRUTH = "BadGroundTruth"
    UNKNOWN_DATA_SOURCE = "UnknownDataSource"
    AGENT = "BadAgent"
    INTERACTION = "BadInteraction"
    BAD_CHAT_TEMPLATE = "BadChatTemplate"
    OVERLONG_PROMPT = "OverlongPrompt"
    NO_ROWS_LEFT = "NoRowsLeft"
    FEWER_ROWS_THAN_BATCH = "FewerRowsThanBatch"
    BAD_SHARE = "BadShare"
    DUPLICATE_ROW = "DuplicateRow"
    SPECIAL_TOKEN = "SpecialToken"
    OVERLAP = "Overlap"


@dataclass(frozen=True, slots=True)
class DataProblem:
    """One thing that is wrong, or, among warnings, worth knowing.

    Attributes:
        where: ``file``, ``file:row`` or ``file:row:column``. Rows of a parquet file count from 0 as
            in a data frame, lines of a JSON-lines file from 1 as in an editor.
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
        reason_code: stable word for programs.
        count: rows of the file that have the same problem; the first is named.
    """

    where: str
    got: str
    why: str
    allowed: str
    reason_code: DataReason
    count: int = 1

    def __str__(self) -> str:
        """The one line that people read."""
        more = f" (and {self.count - 1} more rows like it)" if self.count > 1 else ""
        return printable(f"{self.where}: got {self.got}: {self.why}{more}; {self.allowed}")


class Findings:
    """Collects problems of a pass over the data in bounded memory.

    Problems of one file, column and reason become one line that names the first row and counts the
    others, however many rows are wrong.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, DataReason], DataProblem] = {}
        self._counts: dict[tuple[str, str, DataReason], int] = {}
        self._unlisted = 0

    def add(self, problem: DataProblem, *, file: str = "", column: str = "") -> None:
        """Take in one problem; ``file`` and ``column`` say with which others it is counted."""
        key = (file or problem.where, column, problem.reason_code)
        if key in self._counts:
            self._counts[key] += 1
        elif len(self._first) < LISTED_PROBLEMS:
            self._first[key] = problem
            self._counts[key] = 1
        else:
            self._unlisted += 1

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self._first)

    def problems(self) -> list[DataProblem]:
        """What was found, in the order of the rows."""
        return [
            DataProblem(
                first.where, first.got, first.why, first.allowed, first.reason_code, count=count
            )
            for first, count in zip(self._first.values(), self._counts.values(), strict=True)
        ]

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [str(problem) for problem in self.problems()]
        if self._unlisted:
            lines.append(f"... and {self._unlisted} more problems that are not listed")
        return lines
