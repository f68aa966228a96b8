"""The one pass over the data at the start: check every row, tokenise it, keep it."""

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.data.chat import ChatTokenizer, Tools, tool_name
from ppojob_trainer.data.columns import BadCell, Cells, read_cells
from ppojob_trainer.data.file_checks import open_files
from ppojob_trainer.data.formats import RowFile
from ppojob_trainer.data.problems import DataProblem, Findings
from ppojob_trainer.data.prompt_store import PromptRow, PromptStore
from ppojob_trainer.data.row_agents import RowAgents
from ppojob_trainer.data.row_checks import (
    RewardChecks,
    truthless,
    unrewarded,
    with_control_token,
)
from ppojob_trainer.data.row_tools import shown_tools, untaken_kwargs, wrong_selection
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.json_value import Json

_BATCH_ROWS = 256
_KEYS = 8


@dataclass(slots=True)
class Scan:
    """What one pass found.

    Attributes:
        digests: SHA-256 of what each file's rows are made of, in hex.
        kept: rows to draw from.
        kept_of: of them those of each entry of the list of files.
        difficulties: what a curriculum orders them by.
        dropped: rows left out as too long.
        prompt_kind: "text" or "messages", as the first readable row has it.
        prompt_place: of that row.
        prompt_keys: eight-byte digest of every prompt seen, where asked for.
        row_keys: the same of (data source, split, index), 0 where a row has no index.
        key_rows: numbers of the rows that the keys belong to.
    """

    files: list[RowFile] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    kept: int = 0
    kept_of: list[int] = field(default_factory=list)
    difficulties: "array[float]" = field(default_factory=lambda: array("d"))
    total: int = 0
    dropped: int = 0
    errors: Findings = field(default_factory=Findings)
    warnings: Findings = field(default_factory=Findings)
    prompt_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    row_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    key_rows: "array[int]" = field(default_factory=lambda: array("q"))
    prompt_kind: str = ""
    prompt_place: str = ""

    def place(self, number: int) -> str:
        """``file:row`` of a row of the concatenated files."""
        for file in self.files:
            if number < file.num_rows:
                return file.place(number)
            number -= file.num_rows
        raise IndexError(number)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A readable row on its way through the tokenizer."""

    number: int
    entry: int
    file: RowFile
    place: str
    cells: Cells


@dataclass(slots=True)
class Scanner:
    """Scans the files of one data set.

    Attributes:
        rewards: what the reward side can score; None for no check (a custom function).
        agents: who answers in rows that are conversations; None where none is.
        max_rows: only the first rows; None for all.
        with_keys: also collect keys that find duplicates.
        store: takes the rows to draw from; None where nobody will.
    """

    spec: DataSpec
    chat: ChatTokenizer
    rewards: RewardChecks | None = None
    agents: RowAgents | None = None
    max_rows: int | None = None
    with_keys: bool = False
    store: PromptStore | None = None

    def scan(self, files: Sequence[DataFile]) -> Scan:
        """Read every row once.

        Raises:
            StorageError: the store has no room.
        """
        scan = Scan()
        control = self.chat.control_tokens
        try:
            rows = self._rows(scan, files)
            while batch := list(itertools.islice(rows, _BATCH_ROWS)):
                self._take(scan, batch, control)
            scan.digests = [file.digest() for file in scan.files]
        except BadChatTemplate as error:
            self._add_template_error(scan, error)
        finally:
            for file in scan.files:
                file.close()
        if not scan.errors and not scan.kept:
            scan.errors.add(self._nothing_left(scan))
        elif scan.dropped:
            scan.warnings.add(self._some_dropped(scan))
        return scan

    def _rows(self, scan: Scan, files: Sequence[DataFile]) -> Iterator[_Candidate]:
        scan.kept_of = [0] * len(files)
        # All are opened before the first row is read: what is wrong with them is told at once.
        opened = [self._open(scan, data_file) for data_file in files]
        first = 0
        for entry, (data_file, of_entry) in enumerate(zip(files, opened, strict=True)):
            left = data_file.max_rows
            for file in of_entry:
                before = scan.total
                yield from self._rows_of(scan, file, first, entry, left)
                left = None if left is None else left - (scan.total - before)
                first += file.num_rows

    def _open(self, scan: Scan, data_file: DataFile) -> list[RowFile]:
        found = []
        for opened in open_files(data_file, self.spec, has_agents=self.agents is not None):
            if isinstance(opened, DataProblem):
                scan.errors.add(opened)
            else:
                found.append(opened)
        scan.files += found
        return found

    def _rows_of(
        self, scan: Scan, file: RowFile, first: int, entry: int, most: int | None
    ) -> Iterator[_Candidate]:
        for in_file, row in enumerate(file.rows()):
            if scan.total == self.max_rows or in_file == most:
                return
            scan.total += 1
            place = file.place(in_file)
            if isinstance(row, DataProblem):
                scan.errors.add(row, file=file.path)
                continue
            try:
                cells = read_cells(row, self.spec, has_agents=self.agents is not None)
            except BadCell as bad:
                _add_cell(scan.errors, bad.problem, file.path, place)
                continue
            yield _Candidate(first + in_file, entry, file, place, cells)
        if file.num_rows == 0:
            scan.errors.add(
                DataProblem(
                    file.path, "no rows", "there is nothing to draw from", "at least one row"
                )
            )

    def _take(self, scan: Scan, candidates: list[_Candidate], control: tuple[str, ...]) -> None:
        for candidate, ids in zip(candidates, self._encoded(candidates), strict=True):
            self._check_kind(scan, candidate)
            self._check_row(scan, candidate, control)
            if self.with_keys:
                _add_keys(scan, candidate)
            if isinstance(ids, BadChatTemplate):
                self._add_refusal(scan, candidate, ids)
            elif self._keeps(scan, candidate, len(ids)):
                self._keep(scan, candidate, ids)

    def _encoded(self, candidates: list[_Candidate]) -> list[list[int] | BadChatTemplate]:
        """The prompts as tokens, each with the tools of its row's agent that the row selects."""
        rows = [candidate.cells for candidate in candidates]
        return self.chat.encode_prompts(
            [cells.prompt for cells in rows],
            self.spec.apply_chat_template_kwargs,
            [shown_tools(cells.extra_info, self._tools(cells)) for cells in rows],
        )

    def _keep(self, scan: Scan, candidate: _Candidate, ids: list[int]) -> None:
        cells = candidate.cells
        if self.store is not None:
            cut = truncate(ids, self.spec.max_prompt_tokens, self.spec.overlong_prompts)
            told = cells.prompt, cells.data_source, cells.ground_truth, cells.extra_info
            agent = self.agents.name(cells) if self.agents is not None else ""
            self.store.append(PromptRow(scan.kept, cut, *told, agent))
        scan.kept += 1
        scan.kept_of[candidate.entry] += 1
        if self.spec.curriculum is not None:
            scan.difficulties.append(cells.difficulty)

    def _keeps(self, scan: Scan, candidate: _Candidate, length: int) -> bool:
        limit = self.spec.max_prompt_tokens
        if length == 0:
            bad = DataProblem(
                self.spec.prompt_key,
                "a prompt of no tokens",
                "there is nothing to answer",
                "content that the chat template and the tokenizer keep",
            )
            _add_cell(scan.errors, bad, candidate.file.path, candidate.place)
            return False
        if length <= limit or self.spec.overlong_prompts.startswith("truncate"):
            return True
        if self.spec.overlong_prompts == "drop":
            scan.dropped += 1
            return False
        bad = DataProblem(
            self.spec.prompt_key,
            f"{length} tokens",
            f"longer than spec.data.maxPromptTokens {limit}",
            "a larger maxPromptTokens, or spec.data.overlongPrompts: drop, truncate_left, "
            "truncate_right or truncate_middle",
        )
        _add_cell(scan.errors, bad, candidate.file.path, candidate.place)
        return False

    def _check_kind(self, scan: Scan, candidate: _Candidate) -> None:
        kind = "text" if isinstance(candidate.cells.prompt, str) else "messages"
        if not scan.prompt_kind:
            scan.prompt_kind, scan.prompt_place = kind, candidate.place
        if kind != scan.prompt_kind:
            bad = DataProblem(
                self.spec.prompt_key,
                kind,
                f"{scan.prompt_place} has {scan.prompt_kind}",
                "one kind of prompt in all rows and files",
            )
            _add_cell(scan.errors, bad, candidate.file.path, candidate.place)

    def _check_row(self, scan: Scan, candidate: _Candidate, control: tuple[str, ...]) -> None:
        """What rewards, tools and tokenizer say of a row."""
        cells = candidate.cells
        tools = tuple(map(tool_name, self._tools(cells)))
        found = (
            (scan.errors, unrewarded(cells, self.rewards, self.spec)),
            (scan.errors, wrong_selection(cells, tools)),
            (scan.errors, self.agents.problem(cells) if self.agents is not None else None),
            (scan.warnings, truthless(cells, self.spec) if self.rewards is None else None),
            (scan.warnings, untaken_kwargs(cells, tools)),
            (scan.warnings, with_control_token(cells.prompt, control, self.spec)),
        )
        for findings, bad in found:
            if bad is not None:
                _add_cell(findings, bad, candidate.file.path, candidate.place)

    def _tools(self, cells: Cells) -> Tools:
        """What the model may call in a row."""
        return self.chat.tools if self.agents is None else self.agents.tools(cells)

    def _add_refusal(self, scan: Scan, candidate: _Candidate, error: BadChatTemplate) -> None:
        bad = DataProblem(
            self.spec.prompt_key,
            "a conversation that the chat template refuses",
            error.refusal,
            "messages that the template takes, such as user and assistant in turn",
        )
        _add_cell(scan.errors, bad, candidate.file.path, candidate.place)

    def _add_template_error(self, scan: Scan, error: BadChatTemplate) -> None:
        where, _, rest = error.problems[0].partition(": got ")
        got, _, reason = rest.partition(": ")
        why, _, allowed = reason.rpartition("; ")
        scan.errors.add(DataProblem(where, got, why, allowed))

    def _nothing_left(self, scan: Scan) -> DataProblem:
        return DataProblem(
            "spec.data",
            f"{scan.dropped} of {scan.total} rows dropped",
            f"no prompt is within maxPromptTokens {self.spec.max_prompt_tokens}",
            "a larger maxPromptTokens, or overlongPrompts: truncate_left",
        )

    def _some_dropped(self, scan: Scan) -> DataProblem:
        first, others = scan.files[0].path, len(scan.files) - 1
        return DataProblem(
            f"{first} and {others} more files" if others else first,
            f"{scan.dropped} of {scan.total} rows",
            f"longer than spec.data.maxPromptTokens {self.spec.max_prompt_tokens}, and dropped",
            "fine where it is meant",
        )


def truncate(ids: Sequence[int], limit: int, policy: str) -> tuple[int, ...]:
    """Cut a prompt to ``limit`` tokens, as verl's ``data.truncation`` does.

    Args:
        ids: token ids.
        limit: length after the cut.
        policy: ``truncate_left`` drops the beginning, ``truncate_right`` the end,
            ``truncate_middle`` keeps ``limit // 2`` from the beginning and the rest from the end.
    """
    if len(ids) <= limit:
        return tuple(ids)
    cut = {
        "truncate_left": (0, limit),
        "truncate_right": (limit, 0),
        "truncate_middle": (limit // 2, limit - limit // 2),
    }
    head, tail = cut[policy]
    return (*ids[:head], *ids[len(ids) - tail :])


def _add_cell(findings: Findings, bad: DataProblem, file: str, place: str) -> None:
    """Take in what is wrong with a column of a row; the problem's own place is the column."""
    # Mistakes of one column are one line, whichever message or field of it they are in.
    column = bad.where.partition(".")[0].partition("[")[0]
    findings.add(replace(bad, where=f"{place}:{bad.where}"), file=file, column=column)


def _add_keys(scan: Scan, candidate: _Candidate) -> None:
    cells = candidate.cells
    scan.key_rows.append(candidate.number)
    scan.prompt_keys.append(_key(cells.prompt))
    index = cells.extra_info.get("index")
    split = cells.extra_info.get("split")
    scan.row_keys.append(0 if index is None else _key([cells.data_source, split, index]))


def _key(value: Json | list[dict[str, Json]]) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=_KEYS).digest()
    return int.from_bytes(digest, "little") or 1
