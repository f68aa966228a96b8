"""Files of a data set as its authors publish it, read row by row on the way to verl's columns."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ppojob_trainer.data.file_checks import open_row_file
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.data.row_file import Row
from ppojob_trainer.errors import ConfigError

_ENDINGS = (".jsonl", ".parquet", ".json")


def source_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder: ``train.jsonl``, ``test.parquet`` and the like."""
    found = (folder / f"{split}{ending}" for ending in _ENDINGS)
    return next((path for path in found if path.is_file()), None)


def task_rows(path: Path, row_of: Callable[[Row, str], TaskRow]) -> Iterator[TaskRow]:
    """Read a file row by row.

    Args:
        path: the file.
        row_of: makes verl's row of one, whose place in the file is the second argument.

    Raises:
        ConfigError: the file cannot be read, or one of its rows is none of the data set.
    """
    opened = open_row_file(str(path))
    if isinstance(opened, DataProblem):
        raise ConfigError(str(opened))
    try:
        for number, row in enumerate(opened.rows()):
            if isinstance(row, DataProblem):
                raise ConfigError(str(row))
            yield row_of(row, opened.place(number))
    finally:
        opened.close()


def text_of(row: Row, column: str, place: str, data_set: str) -> str:
    """The text in a column.

    Raises:
        ConfigError: there is none.
    """
    cell = row.get(column)
    if not isinstance(cell, str) or not cell.strip():
        raise ConfigError(f"{place}:{column}: got {cell!r}: not a problem of {data_set}; text")
    return cell
