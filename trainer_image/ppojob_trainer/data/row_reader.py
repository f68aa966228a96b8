"""Row reader: the rows of a dataset's files, checked cell by cell, before tokenization."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ppojob_api.v1alpha1.data import DataFile, DataSpec
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_trainer.data import row_checks
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, Tools
from ppojob_trainer.data.columns import read_row
from ppojob_trainer.data.demonstrations import (
    ASSISTANT,
    GivenRow,
    Message,
    read_demonstration,
    read_guidance,
)
from ppojob_trainer.data.file_checks import open_files
from ppojob_trainer.data.formats import Row, RowFile
from ppojob_trainer.data.media import pictures
from ppojob_trainer.data.media.picture_form import PictureForm, sound_form_of
from ppojob_trainer.data.media.sound_cells import without_parts
from ppojob_trainer.data.media_columns import VIDEOS, Medium, media_of, medium_of, read_media
from ppojob_trainer.data.preferences import read_labelled, read_pair, read_split
from ppojob_trainer.data.problems import BadCell, DataProblem, Findings
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.data.template_columns import TemplateColumns
from ppojob_trainer.json_value import without_nulls


@dataclass(frozen=True, slots=True)
class Candidate:
    """A readable row before tokenization.

    Attributes:
        answers: messages of each answer that is trained on, from its first assistant message on.
        later: pictures after the prompt.
        inputs: inputs of the chat template besides the messages.
        entry: index in the list of files of the specification.
        number: index of the row in all files together.
        path: file of the row.
        place: ``file:row``, for messages.
        columns: all columns of the row, read or not.
    """

    row: PromptRow
    difficulty: float
    answers: Sequence[Sequence[Message]]
    later: Sequence[bytes]
    inputs: TemplateInputs
    entry: int
    number: int
    path: str
    place: str
    columns: Collection[str]


@dataclass(slots=True)
class RowReader:
    """Reads the rows of one dataset.

    Attributes:
        given: type of a job whose rows have their answers.
        agents: agents of rows that are conversations; None without such rows.
        max_rows: number of first rows to read; None for all.
        errors: problems of files and rows.
        files: open files.
        total: number of rows read.
    """

    spec: DataSpec
    chat: ChatTokenizer
    given: GivenType | None
    agents: row_checks.RowAgents | None
    max_rows: int | None
    errors: Findings
    files: list[RowFile] = field(default_factory=list)
    total: int = 0
    media: tuple[Medium, ...] = field(init=False)
    """Media of the model's input; a reward model gets none."""
    _columns: TemplateColumns = field(init=False)

    def __post_init__(self) -> None:
        is_scored = self.given == "reward_model"
        self.media = () if is_scored else media_of(self.chat.pictures, self.spec)
        self._columns = TemplateColumns(self.spec, self.given)

    def read(self, files: Sequence[DataFile]) -> Iterator[Candidate]:
        """Yield the readable rows of all files, in order."""
        # All are opened before the first row is read, so their problems are reported together.
        opened = [self._open(data_file) for data_file in files]
        first = 0
        for entry, (data_file, of_entry) in enumerate(zip(files, opened, strict=True)):
            left = data_file.max_rows
            for file in of_entry:
                before = self.total
                yield from self._rows_of(file, first, entry, left)
                left = None if left is None else left - (self.total - before)
                first += file.num_rows

    def place(self, number: int) -> str:
        """Return ``file:row`` of a row of the concatenated files."""
        for file in self.files:
            if number < file.num_rows:
                return file.place(number)
            number -= file.num_rows
        raise IndexError(number)

    def tools(self, row: PromptRow) -> Tools:
        """Return the tools that the model may call in a row."""
        return self.chat.tools if self.agents is None else self.agents.tools(row)

    def unused_media(self, candidate: Candidate) -> set[str]:
        """Return the media columns that a row's conversation does not show."""
        form = self.chat.pictures
        if form is None or not self.media:
            return set(candidate.columns)
        files = [*pictures.unpacked(candidate.row.pictures), *candidate.later]
        shown = {medium_of(one, self.media).column for one in files}
        # A mark in a row without pictures is text.
        has_no_video = isinstance(form, PictureForm) and form.video is None
        supported = {one.column for one in self.media if not (has_no_video and one is VIDEOS)}
        return ({*candidate.columns} | supported) - shown

    def _open(self, data_file: DataFile) -> list[RowFile]:
        media, has_agents = [one.column for one in self.media], self.agents is not None
        found: list[RowFile] = []
        for opened in open_files(
            data_file, self.spec, has_agents=has_agents, given=self.given, media=media
        ):
            if isinstance(opened, DataProblem):
                self.errors.add(opened)
            else:
                found.append(opened)
        self.files += found
        return found

    def _rows_of(
        self, file: RowFile, first: int, entry: int, limit: int | None
    ) -> Iterator[Candidate]:
        for in_file, cells in enumerate(file.rows()):
            if self.total == self.max_rows or in_file == limit:
                return
            self.total += 1
            place = file.place(in_file)
            if isinstance(cells, DataProblem):
                self.errors.add(cells, file=file.path)
                continue
            # A column has one type: a tool's schema, or a call, has the fields of all others.
            if file.adds_nulls and self.given is not None:
                cells = {name: without_nulls(cell) for name, cell in cells.items()}
            number, columns = first + in_file, {*cells, *file.unread}
            try:
                if sound_form_of(self.chat.pictures) is not None:
                    cells = without_parts(cells, self.spec)
                for row, difficulty, answers in self._read_cells(cells):
                    row, later = self._with_media(row, cells, answers)
                    own = (row, difficulty, answers, later, self._inputs(cells, row))
                    yield Candidate(*own, entry, number, file.path, place, columns)
            except BadCell as bad:
                self.errors.add_cell(bad.problem, file.path, place)
        if file.num_rows == 0:
            why, allowed = "the data is empty", "at least one row"
            self.errors.add(DataProblem(file.path, "no rows", why, allowed))

    def _read_cells(self, cells: Row) -> list[GivenRow]:
        """Read a row of a file: one row, or two for a pair that is split."""
        if self.given in PAIRS:
            return [read_pair(cells, self.spec, is_scored=self.given == "reward_model")]
        if self.given == "kto" and self.spec.split_pairs:
            return read_split(cells, self.spec)
        if self.given == "kto":
            return [read_labelled(cells, self.spec)]
        if self.given is not None:
            return [read_demonstration(cells, self.spec)]
        key = self.spec.guidance_key
        guidance = read_guidance(cells, key) if key is not None else ()
        has_agents, media = self.agents is not None, [one.column for one in self.media]
        return [GivenRow(*read_row(cells, self.spec, has_agents=has_agents, media=media), guidance)]

    def _with_media(
        self, row: PromptRow, cells: Row, answers: Sequence[Sequence[Message]]
    ) -> tuple[PromptRow, Sequence[bytes]]:
        """Return a row with the pictures of its prompt, and the pictures after the prompt."""
        form = self.chat.pictures
        if form is None or not self.media:
            return row, ()
        later = [one for answer in answers for one in answer if one["role"] != ASSISTANT]
        files, behind = read_media(cells, row.prompt, later, self.spec, form, self.given)
        if not files and not behind:
            return row, ()
        if why := self.chat.why_no_pictures(row.data_source):
            medium = next(one for one in self.media if cells.get(one.column))
            raise BadCell(medium.column, f"{medium.noun}s", why, "rows without this column")
        size = sum(len(file) for file in [*files, *behind] if pictures.is_picture(file))
        if size > pictures.MOST_BYTES and self.agents is not None and self.tools(row):
            why, allowed = "tools get them", f"at most {pictures.MOST_BYTES} bytes a row"
            raise BadCell(pictures.COLUMN, f"{size} bytes of pictures", why, allowed)
        return replace(row, pictures=pictures.packed(files)), behind

    def _inputs(self, cells: Row, row: PromptRow) -> TemplateInputs:
        """Return the inputs of the chat template besides the messages."""
        variables = self._columns.variables(cells)
        if self.given is not None:
            return TemplateInputs(variables, self._columns.tools(cells))
        return TemplateInputs(variables, row_checks.shown_tools(row.extra_info, self.tools(row)))
