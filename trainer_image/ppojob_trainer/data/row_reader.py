"""Row reader: the rows of a dataset's files, checked cell by cell, before tokenization."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from ppojob_api.problem import counted, shown
from ppojob_api.v1alpha1.data import DataFile, DataSpec
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_trainer.data import row_checks
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, Tools
from ppojob_trainer.data.columns import as_json, cell_of, difficulty_of, read_row
from ppojob_trainer.data.demonstrations import (
    ASSISTANT,
    GivenRow,
    Message,
    read_demonstration,
    read_guidance,
)
from ppojob_trainer.data.file_checks import open_files
from ppojob_trainer.data.formats import Row, RowFile
from ppojob_trainer.data.media import images
from ppojob_trainer.data.media.audio_cells import read_audios, without_parts
from ppojob_trainer.data.media.image_cells import BadImage, read_images
from ppojob_trainer.data.media.image_form import ImageForm, RequestedSize, audio_form_of
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.data.preferences import read_labelled, read_pair, read_split
from ppojob_trainer.data.problems import BadCell, DataProblem, Findings
from ppojob_trainer.data.prompt_store import Prompt, PromptRow
from ppojob_trainer.json_value import Json, without_nulls

_SCHEMAS = 'a list of {"type": "function", "function": {"name": ...}}, or the same as JSON text'


class Medium(NamedTuple):
    """A kind of media in rows."""

    column: str
    mark: str
    noun: str


IMAGES: Final = Medium(images.COLUMN, images.MARK, "image")
VIDEOS: Final = Medium(images.VIDEO_COLUMN, images.VIDEO_MARK, "video")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A readable row before tokenization."""

    row: PromptRow
    difficulty: float
    # Messages of each answer that is trained on, from its first assistant message on.
    answers: Sequence[Sequence[Message]]
    later: Sequence[bytes]
    inputs: TemplateInputs
    entry: int  # index in the list of files of the specification
    number: int  # index of the row in all files together
    path: str
    place: str
    columns: Collection[str]  # all columns of the row, read or not


@dataclass(slots=True)
class RowReader:
    """Reads the rows of one dataset."""

    spec: DataSpec
    chat: ChatTokenizer
    given: GivenType | None  # type of a job whose rows have their answers
    agents: row_checks.RowAgents | None
    errors: Findings
    files: list[RowFile] = field(default_factory=list)
    total: int = 0
    media: tuple[Medium, ...] = field(init=False)
    """Media of the model's input; a reward model gets images only, as when it scores."""

    def __post_init__(self) -> None:
        media = _media_of(self.chat.images, self.spec)
        is_scored = self.given == "reward_model"
        self.media = tuple(one for one in media if one is IMAGES or not is_scored)

    def read(self) -> Iterator[Candidate]:
        """Yield the readable rows of all files, in order."""
        # All are opened before the first row is read, so their problems are reported together.
        opened = [(data_file, self._open(data_file)) for data_file in self.spec.train]
        first = 0
        for entry, (data_file, of_entry) in enumerate(opened):
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
        form = self.chat.images
        if form is None or not self.media:
            return set(candidate.columns)
        files = [*images.unpacked(candidate.row.images), *candidate.later]
        shown = {_medium_of(one, self.media).column for one in files}
        # A mark in a row without images is text.
        has_no_video = isinstance(form, ImageForm) and form.video is None
        supported = {one.column for one in self.media if not (has_no_video and one is VIDEOS)}
        return ({*candidate.columns} | supported) - shown

    def _open(self, data_file: DataFile) -> list[RowFile]:
        media, found = [one.column for one in self.media], list[RowFile]()
        for opened in open_files(data_file, self.spec, given=self.given, media=media):
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
            if self.total == self.spec.max_train_rows or in_file == limit:
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
                if audio_form_of(self.chat.images) is not None:
                    cells = without_parts(cells, self.spec)
                found, order = self._read_cells(cells), self.spec.curriculum
                difficulty = difficulty_of(cells, order.key) if order else 0.0
                for row, answers in found:
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
        return [GivenRow(read_row(cells, self.spec, has_agents=has_agents, media=media), guidance)]

    def _with_media(
        self, row: PromptRow, cells: Row, answers: Sequence[Sequence[Message]]
    ) -> tuple[PromptRow, Sequence[bytes]]:
        """Return a row with the images of its prompt, and the images after the prompt."""
        form = self.chat.images
        if form is None or not self.media:
            return row, ()
        later = [one for answer in answers for one in answer if one["role"] != ASSISTANT]
        files, behind = self._read_media(cells, row.prompt, later, form)
        if not files and not behind:
            return row, ()
        why = self.chat.why_no_images(row.data_source)
        if self.agents is not None and self.agents.name(row) in self.agents.loops:
            why = f"{self.agents.name(row)} is an agent loop, which gets text"
        if why:
            medium = next(one for one in self.media if cells.get(one.column))
            raise BadCell(medium.column, f"{medium.noun}s", why, "rows without this column")
        size = sum(len(file) for file in [*files, *behind] if images.is_image(file))
        if size > images.MOST_BYTES and self.agents is not None and self.tools(row):
            why, allowed = "tools get them", f"at most {images.MOST_BYTES} bytes a row"
            raise BadCell(images.COLUMN, f"{size} bytes of images", why, allowed)
        return replace(row, images=images.packed(files)), behind

    def _read_media(
        self, cells: Row, prompt: Prompt, later: images.Messages, form: MediaForm
    ) -> tuple[list[bytes], list[bytes]]:
        """Read the media files of a prompt, and those of the messages after it, in order.

        Prompt and messages have a mark for each file.
        """
        marked, key = images.marks(later), self.spec.prompt_key
        found = dict[Medium, Sequence[Sequence[bytes]]]()
        for one in self.media:
            may_be_later = one is IMAGES and self.given == "sft"
            if cells.get(one.column) and one.mark in marked and not may_be_later:
                got, why = f"{one.mark} after an answer", f"not in this version with {self.given}"
                allowed = f"{one.noun}s before the first assistant message"
                raise BadCell(key, got, why, allowed)
        for one in self.media:
            try:
                found[one] = self._files(cells.get(one.column), one, form)
            except BadImage as bad:
                raise BadCell(one.column, *bad.args) from None
        marks = [] if isinstance(prompt, str) else [*images.marks(prompt), *marked]
        found = {one: files for one, files in found.items() if files}
        for one, files in found.items():
            why = f"the row has {counted(len(files), one.noun)}"
            if isinstance(prompt, str):
                why += ", which must be in messages"
                raise BadCell(key, "text", why, "a list of messages")
            if (count := marks.count(one.mark)) != len(files):
                allowed = f"a mark for each {one.noun}"
                raise BadCell(key, f"{counted(count, 'mark')} {one.mark}", why, allowed)
        left = {one.mark: iter(files) for one, files in found.items()}
        ordered = [next(left[mark]) if mark in left else () for mark in marks]
        first = len(marks) - len(marked)
        of_prompt, after_prompt = (
            [file for files in part for file in files]
            for part in (ordered[:first], ordered[first:])
        )
        return of_prompt, after_prompt

    def _files(self, cell: object, medium: Medium, form: MediaForm) -> Sequence[Sequence[bytes]]:
        """Read the files of each image, video or audio in a cell."""
        audio = audio_form_of(form)
        if audio is not None and medium not in (IMAGES, VIDEOS):
            return [[file] for file in read_audios(cell, audio)]
        assert isinstance(form, ImageForm), "a form of images or of audios"
        requested = RequestedSize(self.spec.min_image_pixels, self.spec.max_image_pixels)
        if medium is VIDEOS:
            return read_videos(cell, form, requested)
        return [[file] for file in read_images(cell, form, requested)]

    def _inputs(self, cells: Row, row: PromptRow) -> TemplateInputs:
        """Return the inputs of the chat template besides the messages."""
        variables = dict(self.spec.apply_chat_template_kwargs)
        for name in self.spec.template_columns:
            if (value := as_json(cell_of(cells, name), name)) is not None:
                variables[name] = value
        if self.given is None:
            tools = row_checks.shown_tools(row.extra_info, self.tools(row))
        else:
            tools = _read_tools(cells, self.spec.tools_column(self.given))
        return TemplateInputs(variables, tools)


def _read_tools(row: Row, key: str | None) -> Tools:
    """Return the tool schemas of a demonstration; empty without any."""
    if key is None or key not in row:
        return ()
    cell = cell_of(row, key)
    try:
        value = msgspec.json.decode(cell.strip() or "[]") if isinstance(cell, str) else cell
    except msgspec.MsgspecError as error:
        raise BadCell(key, shown(cell), str(error), _SCHEMAS) from None
    tools = as_json(value or [], key)
    if not isinstance(tools, list) or not all(map(_is_schema, tools)):
        raise BadCell(key, shown(cell), "not a list of tool schemas", _SCHEMAS)
    return _schemas(msgspec.json.encode(tools))


@lru_cache(maxsize=256)
def _schemas(text: bytes) -> Tools:
    """Equal schemas are one object, so that equal rows are rendered together."""
    schemas: Tools = msgspec.json.decode(text)
    return schemas


def _is_schema(tool: Json) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _media_of(form: MediaForm | None, spec: DataSpec) -> tuple[Medium, ...]:
    """Return the kinds of media that a model takes."""
    visual = (IMAGES, VIDEOS) if isinstance(form, ImageForm) else ()
    audio = (Medium(spec.audio_key, images.AUDIO_MARK, "audio"),) if audio_form_of(form) else ()
    return visual + audio


def _medium_of(file: bytes, media: Sequence[Medium]) -> Medium:
    """Return the kind of a file, among those of `_media_of`."""
    if images.audio_of(file) is not None:
        return media[-1]
    return VIDEOS if images.clip_of(file) else IMAGES
