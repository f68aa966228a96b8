"""Problems of data, in the one-line form of problems of a manifest."""

from dataclasses import dataclass, replace

from ppojob_api.problem import counted, printable

LISTED_PROBLEMS = 50
"""Lines of one report; further problems are only counted."""


@dataclass(frozen=True, slots=True)
class DataProblem:
    """An error or a warning."""

    # ``file``, ``file:row`` or ``file:row:column``. Rows of a parquet file count from 0 as in a
    # data frame, lines of a JSON-lines file from 1 as in an editor.
    where: str
    got: str
    why: str
    allowed: str
    count: int = 1  # number of rows of the file with this problem; the first one is named

    def __str__(self) -> str:
        more = f" (and {counted(self.count - 1, 'more row')} like it)" if self.count > 1 else ""
        return printable(f"{self.where}: got {self.got}: {self.why}{more}; {self.allowed}")


class BadCell(Exception):  # noqa: N818  the cell is bad
    """A cell is invalid; the place of the problem is its path, such as prompt[0].role."""

    def __init__(self, column: str, got: str, why: str, allowed: str) -> None:
        self.problem = DataProblem(column, got, why, allowed)
        super().__init__(str(self.problem))


class Findings:
    """Collects the problems of a pass over the data in bounded memory.

    Problems of the same file, column and reason are one line, which names the first row and counts
    the others.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], DataProblem] = {}
        self._unlisted = 0

    def add(self, problem: DataProblem, *, file: str = "", column: str = "") -> None:
        """Add a problem; it is counted with others of the same file, column and reason."""
        key = (file or problem.where, column, problem.why)
        first = self._found.get(key)
        if first is not None:
            self._found[key] = replace(first, count=first.count + 1)
        elif len(self._found) < LISTED_PROBLEMS:
            self._found[key] = problem
        else:
            self._unlisted += 1

    def add_cell(self, problem: DataProblem, file: str, place: str) -> None:
        """Add a problem of a cell, whose place is a path in the row at `place`."""
        # Problems of one column are one line, in whichever message or field of it they are.
        column = problem.where.partition(".")[0].partition("[")[0]
        self.add(replace(problem, where=f"{place}:{problem.where}"), file=file, column=column)

    def __bool__(self) -> bool:
        return bool(self._found)

    def lines(self) -> list[str]:
        """Return the report, in the order of the rows."""
        lines = list(map(str, self._found.values()))
        if self._unlisted:
            lines.append(f"... and {self._unlisted} more problems that are not listed")
        return lines
