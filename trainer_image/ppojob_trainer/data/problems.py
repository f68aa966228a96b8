"""Problems of data, in the same one-line form as mistakes in a manifest."""

from dataclasses import dataclass, replace

from ppojob_api.problem import counted, printable

LISTED_PROBLEMS = 50
"""Lines of one report; further ones are counted."""


@dataclass(frozen=True, slots=True)
class DataProblem:
    """One thing that is wrong, or, among warnings, worth knowing.

    Attributes:
        where: ``file``, ``file:row`` or ``file:row:column``. Rows of a parquet file count from 0 as
            in a data frame, lines of a JSON-lines file from 1 as in an editor.
        count: rows of the file that have the same problem; the first is named.
    """

    where: str
    got: str
    why: str
    allowed: str
    count: int = 1

    def __str__(self) -> str:
        """The one line that people read."""
        more = f" (and {counted(self.count - 1, 'more row')} like it)" if self.count > 1 else ""
        return printable(f"{self.where}: got {self.got}: {self.why}{more}; {self.allowed}")


class BadCell(Exception):  # noqa: N818  the cell is bad
    """One cell is wrong; the problem's place is the column, with the path in it: prompt[0].role."""

    def __init__(self, column: str, got: str, why: str, allowed: str) -> None:
        self.problem = DataProblem(column, got, why, allowed)
        super().__init__(str(self.problem))


class Findings:
    """Collects problems of a pass over the data in bounded memory.

    Problems of one file, column and reason become one line that names the first row and counts the
    others, however many rows are wrong.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], DataProblem] = {}
        self._unlisted = 0

    def add(self, problem: DataProblem, *, file: str = "", column: str = "") -> None:
        """Take in one problem; ``file`` and ``column`` say with which others it is counted."""
        key = (file or problem.where, column, problem.why)
        first = self._found.get(key)
        if first is not None:
            self._found[key] = replace(first, count=first.count + 1)
        elif len(self._found) < LISTED_PROBLEMS:
            self._found[key] = problem
        else:
            self._unlisted += 1

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self._found)

    def lines(self) -> list[str]:
        """The report for people, in the order of the rows."""
        lines = list(map(str, self._found.values()))
        if self._unlisted:
            lines.append(f"... and {self._unlisted} more problems that are not listed")
        return lines
