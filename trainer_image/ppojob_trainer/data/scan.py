"""Data scan: the one pass at the start that checks, tokenises and stores every row."""

import hashlib
import itertools
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from ppojob_api.problem import counted, shown
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.data import row_checks
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs, Tools, tool_name
from ppojob_trainer.data.columns import read_row
from ppojob_trainer.data.demonstrations import (
    ASSISTANT,
    Demonstrations,
    Message,
    read_demonstration,
    read_guidance,
)
from ppojob_trainer.data.file_checks import open_files
from ppojob_trainer.data.formats import Row, RowFile
from ppojob_trainer.data.media import pictures
from ppojob_trainer.data.media.picture_form import PictureForm, sound_form_of
from ppojob_trainer.data.media.sound_cells import without_parts
from ppojob_trainer.data.media_columns import VIDEOS, Medium, media_of, medium_of, shown_by
from ppojob_trainer.data.preferences import ScoredAnswers, read_labelled, read_pair, read_split
from ppojob_trainer.data.problems import BadCell, DataProblem, Findings
from ppojob_trainer.data.prompt_store import AnswerPart, PromptRow, PromptStore
from ppojob_trainer.data.template_columns import TemplateColumns, without_nulls
from ppojob_trainer.data.template_renderer import BadChatTemplate

_BATCH_ROWS = 256
_KEY_BYTES = 8
_ALL_CUTS = "drop, truncate_left, truncate_right or truncate_middle"


class _Asked(TypedDict):
    has_agents: bool
    media: Collection[str]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A readable row before tokenization.

    Attributes:
        answers: trained answers, each from its first turn of the assistant on.
        later: pictures after the prompt.
        told: the chat template's inputs besides the row's messages.
        entry: index in the list of files in the specification.
        number: index of the row in all files together.
        columns: that the row has, read or not.
    """

    row: PromptRow
    difficulty: float
    answers: Sequence[Sequence[Message]]
    later: Sequence[bytes]
    told: TemplateInputs
    entry: int
    number: int
    path: str
    place: str
    columns: Collection[str]


@dataclass(slots=True)
class Scan:
    """Reads the files of one dataset, and holds the results.

    Attributes:
        rewards: what the reward side can score; None for no check (a custom function).
        agents: agents of rows that are conversations; None without such rows.
        max_rows: only the first rows; None for all.
        sources: data sources that the job's reference reads; None for all.
        store: stores the rows to draw from; None for a check only. Keys that find duplicates are
            collected then.
        digests: SHA-256 of each file's rows, in hex.
        shown: SHA-256 of their pictures, which may be separate files; None without any.
        kept: rows to draw from; ``kept_of`` has those of each entry of the list of files.
        difficulties: order of a curriculum.
        given: the type of a job with demonstrations.
        scored: rows with scores of earlier responses; ``guided`` are those with given responses.
        dropped: rows dropped as too long; ``untrained`` are rows without trained tokens.
        prompt_kind: "text" or "messages", as the first readable row has it, at ``prompt_place``.
        prompt_keys: eight-byte digest of every prompt seen.
        row_keys: the same of (data source, split, index), 0 for a row without index.
        key_rows: numbers of the rows that the keys belong to.
    """

    spec: DataSpec
    chat: ChatTokenizer
    rewards: row_checks.RewardChecks | None
    agents: row_checks.RowAgents | None
    max_rows: int | None
    sources: Collection[str] | None = None
    store: PromptStore | None = None
    given: GivenType | None = None
    files: list[RowFile] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    shown: "hashlib._Hash | None" = None
    kept: int = 0
    good: int = 0
    kept_of: list[int] = field(default_factory=list)
    difficulties: "array[float]" = field(default_factory=lambda: array("d"))
    scored: int = 0
    guided: int = 0
    total: int = 0
    dropped: int = 0
    untrained: int = 0
    errors: Findings = field(default_factory=Findings)
    warnings: Findings = field(default_factory=Findings)
    prompt_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    row_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    key_rows: "array[int]" = field(default_factory=lambda: array("q"))
    prompt_kind: str = ""
    prompt_place: str = ""
    _answers: Demonstrations | ScoredAnswers | None = None
    _columns: TemplateColumns = field(init=False)

    def __post_init__(self) -> None:
        self._columns = TemplateColumns(self.spec, self.given)
        if self.given is not None:
            self.rewards = None  # nothing is scored
            is_scored = self.given == "reward_model"
            self._answers = ScoredAnswers(self.chat) if is_scored else Demonstrations(self.chat)
        elif self.spec.guidance_key is not None:
            self._answers = Demonstrations(self.chat)

    def read(self, files: Sequence[DataFile]) -> None:
        """Read every row once.

        Raises:
            StorageError: the store has no room.
        """
        control = tuple(one.content for one in self.chat.added_tokens.values() if one.special)
        try:
            rows = self._rows(files)
            while batch := list(itertools.islice(rows, _BATCH_ROWS)):
                self._take(batch, control)
            self.digests = [file.digest() for file in self.files]
        except BadChatTemplate as error:
            self._add_template_error(error)
        finally:
            for file in self.files:
                file.close()
        self._tell_left_out()

    def _tell_left_out(self) -> None:
        """Report how many rows are left out, and refuse data without usable rows."""
        most = f"maxPromptTokens {self.spec.max_prompt_tokens}"
        if self.spec.teacher_prompt_key is not None:
            most += f" or maxTeacherPromptTokens {self._longest_of_teacher}"
        if self._answers is not None:
            most += f" or maxResponseTokens {self.spec.max_response_tokens}"
        total = self.total * (2 if self.spec.split_pairs else 1)
        dropped = f"{self.dropped} of {counted(total, 'row')}"
        if not self.errors and not self.kept and not self.untrained:
            why = f"no {'row' if self.given else 'prompt'} is within {most}"
            allowed = "a larger maxPromptTokens, or overlongPrompts: truncate_left"
            self.errors.add(DataProblem(self._where, f"{dropped} dropped", why, allowed))
        elif self.dropped:
            why = f"longer than spec.data.{most}, and dropped"
            self.warnings.add(DataProblem(self._where, dropped, why, "fine where it is meant"))
        if self.untrained:
            got = f"{self.untrained} of {counted(total, 'row')}"
            why = "no token of their answers is trained"
            if self.given in PAIRS:
                why = "both answers are equal, or one has no trained token"
            why += ", and they are dropped"
            problem = DataProblem(self._where, got, why, "fine where other rows are left")
            (self.warnings if self.kept else self.errors).add(problem)
        if self.given == "kto" and self.kept:
            self._tell_labels()
        if self.kept and not self.errors:  # a row that is refused may have what the others lack
            self._tell_empty_columns()

    def _tell_empty_columns(self) -> None:
        """Refuse the name of a column that is empty in every row."""
        for field_, key, filled, what in (
            ("scoresKey", self.spec.scores_key, self.scored, "scores"),
            ("guidanceKey", self.spec.guidance_key, self.guided, "responses"),
        ):
            if key is not None and not filled:
                why = f"no row has {what} there: {counted(self.kept, 'row')}"
                allowed = "a column, or an entry of extra_info, that some rows have"
                self.errors.add(DataProblem(f"spec.data.{field_}", shown(key), why, allowed))

    def _tell_labels(self) -> None:
        got = f"{self.good} of {self.kept} answers good"
        if self.kept == 1:
            why, allowed = (
                "kto also pairs each prompt with the answer to another one",
                "2 rows or more",
            )
            self.errors.add(DataProblem(self._where, got, why, allowed))
        elif self.good in {0, self.kept}:
            why = "kto learns the difference of good and bad answers"
            self.warnings.add(DataProblem(self._where, got, why, "answers of both kinds"))

    @property
    def _where(self) -> str:
        others = len(self.files) - 1
        return self.files[0].path + (f" and {others} more files" if others else "")

    def place(self, number: int) -> str:
        """``file:row`` of a row of the concatenated files."""
        for file in self.files:
            if number < file.num_rows:
                return file.place(number)
            number -= file.num_rows
        raise IndexError(number)

    def _rows(self, files: Sequence[DataFile]) -> Iterator[_Candidate]:
        self.kept_of = [0] * len(files)
        # All are opened before the first row is read: what is wrong with them is told at once.
        opened = [self._open(data_file) for data_file in files]
        first = 0
        for entry, (data_file, of_entry) in enumerate(zip(files, opened, strict=True)):
            left = data_file.max_rows
            for file in of_entry:
                before = self.total
                yield from self._rows_of(file, first, entry, left)
                left = None if left is None else left - (self.total - before)
                first += file.num_rows

    def _open(self, data_file: DataFile) -> list[RowFile]:
        found: list[RowFile] = []
        for opened in open_files(data_file, self.spec, given=self.given, **self._asked):
            if isinstance(opened, DataProblem):
                self.errors.add(opened)
            else:
                found.append(opened)
        self.files += found
        return found

    def _rows_of(
        self, file: RowFile, first: int, entry: int, most: int | None
    ) -> Iterator[_Candidate]:
        for in_file, cells in enumerate(file.rows()):
            if self.total == self.max_rows or in_file == most:
                return
            self.total += 1
            place = file.place(in_file)
            if isinstance(cells, DataProblem):
                self.errors.add(cells, file=file.path)
                continue
            if file.adds_nulls and self.given is not None:
                cells = {name: without_nulls(cell) for name, cell in cells.items()}
            number, columns = first + in_file, {*cells, *file.unread}
            try:
                if sound_form_of(self.chat.pictures) is not None:
                    cells = without_parts(cells, self.spec)
                for row, difficulty, answers in self._read(cells):
                    row, later = self._seeing(row, cells, answers)
                    told = self._told(cells, row)
                    own = (row, difficulty, answers, later, told)
                    yield _Candidate(*own, entry, number, file.path, place, columns)
            except BadCell as bad:
                _add(self.errors, bad.problem, file.path, place)
        if file.num_rows == 0:
            why, allowed = "the data is empty", "at least one row"
            self.errors.add(DataProblem(file.path, "no rows", why, allowed))

    def _read(self, cells: Row) -> list[tuple[PromptRow, float, Sequence[Sequence[Message]]]]:
        """Read a row of a file: one row, or two for a split pair."""
        if self.given in PAIRS:
            return [read_pair(cells, self.spec, is_scored=self.given == "reward_model")]
        if self.given == "kto" and self.spec.split_pairs:
            return [*read_split(cells, self.spec)]
        if self.given == "kto":
            return [read_labelled(cells, self.spec)]
        if self.given is not None:
            return [read_demonstration(cells, self.spec)]
        key = self.spec.guidance_key
        guidance = read_guidance(cells, key) if key is not None else ()
        return [(*read_row(cells, self.spec, **self._asked), guidance)]

    def _seeing(
        self, row: PromptRow, cells: Row, answers: Sequence[Sequence[Message]]
    ) -> tuple[PromptRow, Sequence[bytes]]:
        """Return a row with its prompt's pictures, and the pictures after the prompt."""
        form = self.chat.pictures
        if form is None or not self._media:
            return row, ()
        later = [one for answer in answers for one in answer if one["role"] != ASSISTANT]
        files, behind = shown_by(cells, row.prompt, later, self.spec, form, self.given)
        if not files and not behind:
            return row, ()
        if why := self.chat.blind(row.data_source):
            shown = next(one for one in self._media if cells.get(one.column))
            raise BadCell(shown.column, f"{shown.noun}s", why, "rows without this column")
        size = sum(len(file) for file in [*files, *behind] if pictures.is_picture(file))
        if size > pictures.MOST_BYTES and self.agents is not None and self._tools(row):
            why, allowed = "tools are given them", f"at most {pictures.MOST_BYTES} bytes a row"
            raise BadCell(pictures.COLUMN, f"{size} bytes of pictures", why, allowed)
        return replace(row, pictures=pictures.packed(files)), behind

    def _told(self, cells: Row, row: PromptRow) -> TemplateInputs:
        """Return the chat template's inputs besides the row's messages."""
        variables = self._columns.variables(cells)
        if self.given is not None:
            return TemplateInputs(variables, self._columns.tools(cells))
        return TemplateInputs(variables, row_checks.shown_tools(row.extra_info, self._tools(row)))

    def _take(self, candidates: list[_Candidate], control: tuple[str, ...]) -> None:
        told = [candidate.told for candidate in candidates]
        encoded = self.chat.encode_prompts([one.row.shown_prompt for one in candidates], told)
        taught_ids: list[list[int] | BadChatTemplate] = [[]] * len(candidates)
        if self.spec.teacher_prompt_key is not None:
            of_teacher = [one.row.teacher_prompt or "" for one in candidates]
            taught_ids = self.chat.encode_prompts(of_teacher, told)
        for candidate, ids, taught in zip(candidates, encoded, taught_ids, strict=True):
            self._check(candidate, control)
            if self.store is None:
                self._add_keys(candidate)
            key = self.spec.prompt_key
            try:
                if isinstance(ids, BadChatTemplate):
                    raise ids
                if isinstance(taught, BadChatTemplate):
                    key = self.spec.teacher_prompt_key or key
                    raise taught
                answers: Sequence[Sequence[AnswerPart]] = ()
                ids = self._with_pictures(candidate, ids)
                if self._answers is not None:
                    key = self.spec.guidance_key or key
                    given = candidate.row.prompt, ids, candidate.answers, candidate.told
                    ids, answers = self._answers.tokens(*given, candidate.later)
                self._keep_or_drop(candidate, ids, taught, answers)
            except BadChatTemplate as refused:
                if not refused.refusal:
                    raise  # it is no matter of this row
                bad = DataProblem(
                    key,
                    "a conversation that the chat template refuses",
                    refused.refusal,
                    "messages that the template takes, such as user and assistant in turn",
                )
                _add(self.errors, bad, candidate.path, candidate.place)

    @property
    def _media(self) -> tuple[Medium, ...]:
        """Return the media of the model's input; a reward model sees none."""
        return () if self.given == "reward_model" else media_of(self.chat.pictures, self.spec)

    @property
    def _asked(self) -> _Asked:
        """Return the contents of rows besides their prompts."""
        media = [one.column for one in self._media]
        return {"has_agents": self.agents is not None, "media": media}

    def _with_pictures(self, candidate: _Candidate, ids: list[int]) -> list[int]:
        """A prompt with the tokens of its pictures."""
        form, held = self.chat.pictures, candidate.row.pictures
        if held or candidate.later:
            self.shown = self.shown or hashlib.sha256()
            for files in (held, *candidate.later):
                self.shown.update(hashlib.sha256(files).digest())
        if form is None or not held:
            return ids
        wanted = [token for token, _ in form.marks(held)]
        written = [one for one in ids if one in {*wanted}]
        if written != wanted:
            counts = (
                f"{written.count(one)} tokens {one} for {wanted.count(one)}"
                for one in dict.fromkeys(wanted)
            )
            told = f"it gives {' and '.join(counts)} pictures, clips of videos or sounds"
            raise BadChatTemplate(told, told)
        return form.expanded(ids, held)

    def _tools(self, row: PromptRow) -> Tools:
        """Return the tools that the model may call in a row."""
        return self.chat.tools if self.agents is None else self.agents.tools(row)

    def _check(self, candidate: _Candidate, control: tuple[str, ...]) -> None:
        """Check a row against the rows before it, rewards, tools and tokenizer."""
        row = candidate.row
        tools = tuple(map(tool_name, self._tools(row)))
        may_need_truth = self.rewards is None and not self.given
        whole = row.prompt
        if not isinstance(whole, str):
            whole = [*whole, *(dict(said) for answer in candidate.answers for said in answer)]
        found = (
            (self.errors, self._other_kind(candidate)),
            (self.errors, row_checks.unrewarded(row, self.rewards, self.spec)),
            (self.errors, row_checks.unread(row, self.sources, self.spec)),
            (self.errors, row_checks.wrong_selection(row.extra_info, tools)),
            (self.errors, self.agents.problem(row) if self.agents is not None else None),
            (self.warnings, row_checks.truthless(row, self.spec) if may_need_truth else None),
            (self.warnings, row_checks.untaken_kwargs(row.extra_info, tools)),
            (self.warnings, row_checks.with_control_token(whole, control, self.spec)),
            (
                self.warnings,
                row_checks.with_unseen_media(
                    whole, self._unseen(candidate), self.spec, self.chat.why_shown_none
                ),
            ),
        )
        for findings, bad in found:
            if bad is not None:
                _add(findings, bad, candidate.path, candidate.place)

    def _unseen(self, candidate: _Candidate) -> set[str]:
        """Return the media columns that the row's prompt does not show."""
        form = self.chat.pictures
        if form is None or not self._media:
            return set(candidate.columns)
        files = [*pictures.unpacked(candidate.row.pictures), *candidate.later]
        shown = {medium_of(one, self._media).column for one in files}
        # A mark in a row without pictures is text.
        is_blind = isinstance(form, PictureForm) and form.video is None
        may = {one.column for one in self._media if not (is_blind and one is VIDEOS)}
        return ({*candidate.columns} | may) - shown

    def _other_kind(self, candidate: _Candidate) -> DataProblem | None:
        """Return a problem if a prompt is text and the first one is messages, or vice versa."""
        kind = "text" if isinstance(candidate.row.prompt, str) else "messages"
        if not self.prompt_kind:
            self.prompt_kind, self.prompt_place = kind, candidate.place
        if kind == self.prompt_kind:
            return None
        why = f"{self.prompt_place} has {self.prompt_kind}"
        allowed = "one kind of prompt in all rows and files"
        return DataProblem(self.spec.prompt_key, kind, why, allowed)

    def _add_keys(self, candidate: _Candidate) -> None:
        row = candidate.row
        index, split = row.extra_info.get("index"), row.extra_info.get("split")
        self.key_rows.append(candidate.number)
        shown = hashlib.sha256(row.pictures).hexdigest() if row.pictures else ""
        self.prompt_keys.append(_key((row.prompt, shown) if shown else row.prompt))
        self.row_keys.append(0 if index is None else _key([row.data_source, split, index]))

    @property
    def _longest_of_teacher(self) -> int:
        return self.spec.max_teacher_prompt_tokens or self.spec.max_prompt_tokens

    def _bad_prompt(self, candidate: _Candidate, ids: list[int], taught: list[int]) -> bool:
        """Whether a prompt has too many tokens or none, which is reported."""
        spec, key = self.spec, self.spec.teacher_prompt_key
        prompts = [(spec.prompt_key, ids, "maxPromptTokens", spec.max_prompt_tokens)]
        if key is not None:
            prompts.append((key, taught, "maxTeacherPromptTokens", self._longest_of_teacher))
        for place, tokens, name, limit in prompts:
            if not tokens:
                allowed = "content that the chat template and the tokenizer keep"
                bad = "a prompt of no tokens", "the prompt is empty", allowed
            elif len(tokens) > limit and (
                spec.overlong_prompts == "error" or candidate.row.pictures
            ):
                cuts = "drop" if candidate.row.pictures else _ALL_CUTS
                allowed = f"a larger {name}, or spec.data.overlongPrompts: {cuts}"
                bad = f"{len(tokens)} tokens", f"longer than spec.data.{name} {limit}", allowed
            else:
                continue
            _add(self.errors, DataProblem(place, *bad), candidate.path, candidate.place)
            return True
        return False

    def _keep_or_drop(
        self,
        candidate: _Candidate,
        ids: list[int],
        taught: list[int],
        answers: Sequence[Sequence[AnswerPart]],
    ) -> None:
        limit, policy = self.spec.max_prompt_tokens, self.spec.overlong_prompts
        longest, of_teacher = self.spec.max_response_tokens, self._longest_of_teacher
        lengths = [sum(len(part.tokens) for part in one) for one in answers]
        answered = max(lengths, default=0)
        is_overlong = len(ids) > limit or len(taught) > of_teacher or answered > longest
        if policy == "drop" and is_overlong:
            self.dropped += 1
            return
        if self._bad_prompt(candidate, ids, taught):
            return
        if answered > longest and policy == "error":
            allowed = (
                "a larger maxResponseTokens, or spec.data.overlongPrompts: drop, or truncate_right "
                "for its beginning"
            )
            # An answer without a column of its own is part of the prompt.
            columns = self.spec.answer_columns(self.given) or (self.spec.prompt_key,)
            place = self.spec.guidance_key or columns[lengths.index(answered)]
            got = f"an answer of {answered} tokens"
            why = f"longer than spec.data.maxResponseTokens {longest}"
            bad = DataProblem(place, got, why, allowed)
            _add(self.errors, bad, candidate.path, candidate.place)
            return
        row = candidate.row
        kept: tuple[tuple[AnswerPart, ...], ...] = ()
        if self._answers is not None:
            kept = tuple(self._answers.kept(answer, longest) for answer in answers)
            if self.given and (not all(kept) or len({*kept}) < len(kept)):
                self.untrained += 1
                return
        if self.store is not None:
            agent = self.agents.name(row) if self.agents is not None else ""
            row = replace(
                row,
                index=self.kept,
                token_ids=truncate(ids, limit, policy),
                agent=agent,
                answers=kept,
                teacher_token_ids=truncate(taught, of_teacher, policy),
            )
            self.store.append(row)
        self.kept += 1
        self.good += candidate.row.ground_truth is True
        self.scored += bool(candidate.row.known_scores)
        self.guided += bool(kept)
        self.kept_of[candidate.entry] += 1
        if self.spec.curriculum is not None:
            self.difficulties.append(candidate.difficulty)

    def _add_template_error(self, error: BadChatTemplate) -> None:
        where, _, rest = error.problems[0].partition(": got ")
        got, _, reason = rest.partition(": ")
        why, _, allowed = reason.rpartition("; ")
        self.errors.add(DataProblem(where, got, why, allowed))


def truncate(ids: Sequence[int], limit: int, policy: str) -> tuple[int, ...]:
    """Cut a prompt to ``limit`` tokens, as verl's ``data.truncation`` does.

    ``truncate_left`` drops the beginning, ``truncate_right`` the end; ``truncate_middle`` keeps
    ``limit // 2`` tokens of the beginning and the rest of the end.
    """
    if len(ids) <= limit:
        return tuple(ids)
    head = {"truncate_left": 0, "truncate_right": limit, "truncate_middle": limit // 2}[policy]
    return (*ids[:head], *ids[len(ids) - (limit - head) :])


def _add(findings: Findings, bad: DataProblem, file: str, place: str) -> None:
    """Take in what is wrong with a column of a row; the problem's own place is the column."""
    # Mistakes of one column are one line, whichever message or field of it they are in.
    column = bad.where.partition(".")[0].partition("[")[0]
    findings.add(replace(bad, where=f"{place}:{bad.where}"), file=file, column=column)


def _key(value: object) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=_KEY_BYTES).digest()
    return int.from_bytes(digest, "little") or 1
