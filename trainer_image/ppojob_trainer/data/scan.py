"""Data scan: the one pass over a dataset that checks, tokenises and stores every row."""

import hashlib
import itertools
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ppojob_api.problem import counted, shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_trainer.data import row_checks
from ppojob_trainer.data.chat import ChatTokenizer, tool_name
from ppojob_trainer.data.demonstrations import Demonstrations
from ppojob_trainer.data.preferences import ScoredAnswers
from ppojob_trainer.data.problems import DataProblem, Findings
from ppojob_trainer.data.prompt_store import AnswerPart, PromptRow, PromptStore
from ppojob_trainer.data.row_reader import Candidate, RowReader
from ppojob_trainer.data.template_renderer import BadChatTemplate

_BATCH_ROWS = 256
_KEY_BYTES = 8
_POLICIES = "drop, truncate_left, truncate_right or truncate_middle"


@dataclass(slots=True)
class Scan:
    """Reads the files of one dataset, and holds the results."""

    spec: DataSpec  # its training files are read
    chat: ChatTokenizer
    # Checks whether rewards can score a row; None for no check (custom functions).
    rewards: row_checks.RewardChecks | None = None
    agents: row_checks.RowAgents | None = None
    # Data sources that the job's reference reads; None for all.
    sources: Collection[str] | None = None
    # Stores the rows to draw from; None for a check only, which collects the keys that find
    # held-out prompts.
    store: PromptStore | None = None
    given: GivenType | None = None  # type of a job whose rows have their answers
    digests: list[str] = field(default_factory=list)  # SHA-256 of each file's rows, in hex
    # SHA-256 of the rows' images, which may be separate files; None without any.
    media_digest: "hashlib._Hash | None" = None
    kept: int = 0  # rows to draw from
    kept_of: list[int] = field(default_factory=list)  # of each entry of the list of files
    good: int = 0
    # (kept,) order of a curriculum; empty without one.
    difficulties: "array[float]" = field(default_factory=lambda: array("d"))
    scored: int = 0  # rows with scores of earlier responses
    guided: int = 0  # rows with given responses
    dropped: int = 0  # rows dropped as too long
    untrained: int = 0  # rows without trained tokens
    errors: Findings = field(default_factory=Findings)
    warnings: Findings = field(default_factory=Findings)
    # (rows,) eight-byte digest of each prompt.
    prompt_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    key_rows: "array[int]" = field(default_factory=lambda: array("q"))
    prompt_kind: str = ""  # "text" or "messages", as in the first readable row
    prompt_place: str = ""  # of that row
    reader: RowReader = field(init=False)
    _answers: Demonstrations | ScoredAnswers | None = None

    def __post_init__(self) -> None:
        self.reader = RowReader(self.spec, self.chat, self.given, self.agents, self.errors)
        if self.given is not None:
            self.rewards = None  # nothing is scored
            is_scored = self.given == "reward_model"
            self._answers = ScoredAnswers(self.chat) if is_scored else Demonstrations(self.chat)
        elif self.spec.guidance_key is not None:
            self._answers = Demonstrations(self.chat)

    def read(self) -> None:
        """Read every row once; raises StorageError if there is no space in the store."""
        special = tuple(one.content for one in self.chat.added_tokens.values() if one.special)
        self.kept_of = [0] * len(self.spec.train)
        try:
            rows = self.reader.read()
            while batch := list(itertools.islice(rows, _BATCH_ROWS)):
                self._add_batch(batch, special)
            self.digests = [file.digest() for file in self.reader.files]
        except BadChatTemplate as error:
            where, _, rest = error.problems[0].partition(": got ")
            got, _, reason = rest.partition(": ")
            why, _, allowed = reason.rpartition("; ")
            self.errors.add(DataProblem(where, got, why, allowed))
        finally:
            for file in self.reader.files:
                file.close()
        self._report_dropped()

    def _report_dropped(self) -> None:
        """Report how many rows are dropped, and refuse data without usable rows."""
        limits = f"maxPromptTokens {self.spec.max_prompt_tokens}"
        if self.spec.teacher_prompt_key is not None:
            limits += f" or maxTeacherPromptTokens {self._max_teacher_tokens}"
        if self._answers is not None:
            limits += f" or maxResponseTokens {self.spec.max_response_tokens}"
        total = self.reader.total * (2 if self.spec.split_pairs else 1)
        dropped = f"{self.dropped} of {counted(total, 'row')}"
        if not self.errors and not self.kept and not self.untrained:
            why = f"no {'row' if self.given else 'prompt'} is within {limits}"
            allowed = "a larger maxPromptTokens, or overlongPrompts: truncate_left"
            self.errors.add(DataProblem(self._where, f"{dropped} dropped", why, allowed))
        elif self.dropped:
            why = f"longer than spec.data.{limits}, and dropped"
            self.warnings.add(DataProblem(self._where, dropped, why, "fine if intended"))
        if self.untrained:
            got = f"{self.untrained} of {counted(total, 'row')}"
            why = "no token of their answers is trained, and they are dropped"
            if self.given in PAIRS:
                why = "both answers are equal, or one has no trained token, and they are dropped"
            problem = DataProblem(self._where, got, why, "fine if other rows remain")
            (self.warnings if self.kept else self.errors).add(problem)
        if self.given == "kto" and self.kept:
            self._check_labels()
        if self.kept and not self.errors:  # a refused row may have what the others lack
            self._check_empty_columns()

    def _check_empty_columns(self) -> None:
        """Refuse the name of a column that is empty in every row."""
        for field_, key, filled, what in (
            ("scoresKey", self.spec.scores_key, self.scored, "scores"),
            ("guidanceKey", self.spec.guidance_key, self.guided, "responses"),
        ):
            if key is not None and not filled:
                why = f"no row has {what} there: {counted(self.kept, 'row')}"
                allowed = "a column, or an entry of extra_info, that some rows have"
                self.errors.add(DataProblem(f"spec.data.{field_}", shown(key), why, allowed))

    def _check_labels(self) -> None:
        got = f"{self.good} of {self.kept} answers good"
        if self.kept == 1:
            why = "kto also pairs each prompt with the answer to another one"
            self.errors.add(DataProblem(self._where, got, why, "at least 2 rows"))
        elif self.good in {0, self.kept}:
            why = "kto learns the difference of good and bad answers"
            self.warnings.add(DataProblem(self._where, got, why, "answers of both kinds"))

    @property
    def _where(self) -> str:
        first, *others = self.reader.files
        return first.path + (f" and {len(others)} more files" if others else "")

    def _add_batch(self, candidates: list[Candidate], special: tuple[str, ...]) -> None:
        """Tokenise and check candidates; keep those that are usable."""
        inputs = [candidate.inputs for candidate in candidates]
        prompts = [one.row.prompt_with_media for one in candidates]
        encoded = self.chat.encode_prompts(prompts, inputs)
        teacher_encoded: list[list[int] | BadChatTemplate] = [[]] * len(candidates)
        if self.spec.teacher_prompt_key is not None:
            teacher_prompts = [one.row.teacher_prompt or "" for one in candidates]
            teacher_encoded = self.chat.encode_prompts(teacher_prompts, inputs)
        for candidate, ids, teacher_ids in zip(candidates, encoded, teacher_encoded, strict=True):
            self._check(candidate, special)
            key = self.spec.prompt_key
            try:
                if isinstance(ids, BadChatTemplate):
                    raise ids
                if isinstance(teacher_ids, BadChatTemplate):
                    key = self.spec.teacher_prompt_key or key
                    raise teacher_ids
                answers: Sequence[Sequence[AnswerPart]] = ()
                if self._answers is not None:
                    key = self.spec.guidance_key or key
                    given = candidate.row.prompt_with_media, ids, candidate.answers
                    ids, answers = self._answers.tokens(*given, candidate.inputs, candidate.later)
                key = self.spec.prompt_key
                ids = self._with_images(candidate, ids)
                self._keep_or_drop(candidate, ids, teacher_ids, answers)
            except BadChatTemplate as refused:
                if not refused.refusal:
                    raise  # it concerns all rows
                bad = DataProblem(
                    key,
                    "a conversation that the chat template refuses",
                    refused.refusal,
                    "messages that the template takes, such as alternating user and assistant",
                )
                self.errors.add_cell(bad, candidate.path, candidate.place)

    def _with_images(self, candidate: Candidate, ids: list[int]) -> list[int]:
        """Expand the placeholders of a prompt to the tokens of its images."""
        form, files = self.chat.images, candidate.row.images
        if files or candidate.later:
            self.media_digest = self.media_digest or hashlib.sha256()
            for one in (files, *candidate.later):
                self.media_digest.update(hashlib.sha256(one).digest())
        if form is None or not files:
            return ids
        expected = [token for token, _ in form.marks(files)]
        found = [one for one in ids if one in {*expected}]
        if found != expected:
            counts = (
                f"{found.count(one)} tokens {one} for {expected.count(one)}"
                for one in dict.fromkeys(expected)
            )
            refusal = f"it gives {' and '.join(counts)} images, clips of videos or audios"
            raise BadChatTemplate(refusal, refusal)
        return form.expanded(ids, files)

    def _check(self, candidate: Candidate, special: tuple[str, ...]) -> None:
        """Check a row against the rows before it, rewards, tools and tokenizer."""
        row, spec = candidate.row, self.spec
        tools = tuple(map(tool_name, self.reader.tools(row)))
        may_need_truth = self.rewards is None and not self.given
        whole = row.prompt
        if not isinstance(whole, str):
            whole = [*whole, *(dict(one) for answer in candidate.answers for one in answer)]
        unused = self.reader.unused_media(candidate)
        errors = (
            self._other_kind(candidate),
            row_checks.no_scorer(row, self.rewards, spec),
            row_checks.no_reference(row, self.sources, spec),
            row_checks.wrong_selection(row.extra_info, tools),
            self.agents.problem(row) if self.agents is not None else None,
        )
        warnings = (
            row_checks.no_ground_truth(row, spec) if may_need_truth else None,
            row_checks.special_token(whole, special, spec),
            row_checks.mark_without_media(whole, unused, spec, self.chat.why_no_media),
        )
        for findings, problems in ((self.errors, errors), (self.warnings, warnings)):
            for problem in filter(None, problems):
                findings.add_cell(problem, candidate.path, candidate.place)
        if self.store is None:
            self.key_rows.append(candidate.number)
            value = repr(row.prompt).encode() + row.images
            digest = hashlib.blake2b(value, digest_size=_KEY_BYTES).digest()
            self.prompt_keys.append(int.from_bytes(digest, "little"))

    def _other_kind(self, candidate: Candidate) -> DataProblem | None:
        """Return a problem if a prompt is text and the first one is messages, or vice versa."""
        kind = "text" if isinstance(candidate.row.prompt, str) else "messages"
        if not self.prompt_kind:
            self.prompt_kind, self.prompt_place = kind, candidate.place
        if kind == self.prompt_kind:
            return None
        why = f"{self.prompt_place} has {self.prompt_kind}"
        allowed = "one kind of prompt in all rows and files"
        return DataProblem(self.spec.prompt_key, kind, why, allowed)

    @property
    def _max_teacher_tokens(self) -> int:
        return self.spec.max_teacher_prompt_tokens or self.spec.max_prompt_tokens

    def _bad_prompt(self, row: PromptRow, ids: list[int], teacher: list[int]) -> DataProblem | None:
        """Return the problem of a prompt with no tokens, or too many."""
        spec, key = self.spec, self.spec.teacher_prompt_key
        prompts = [(spec.prompt_key, ids, "maxPromptTokens", spec.max_prompt_tokens)]
        if key is not None:
            prompts.append((key, teacher, "maxTeacherPromptTokens", self._max_teacher_tokens))
        for column, tokens, name, limit in prompts:
            if not tokens:
                allowed = "content that the chat template and the tokenizer keep"
                return DataProblem(column, "a prompt of no tokens", "the prompt is empty", allowed)
            if len(tokens) > limit and (spec.overlong_prompts == "error" or row.images):
                policies = "drop" if row.images else _POLICIES
                why = f"longer than spec.data.{name} {limit}"
                allowed = f"a larger {name}, or spec.data.overlongPrompts: {policies}"
                return DataProblem(column, f"{len(tokens)} tokens", why, allowed)
        return None

    def _bad_answer(self, lengths: Sequence[int]) -> DataProblem | None:
        """Return the problem of an answer that is too long, if such ones are errors."""
        longest, limit = max(lengths, default=0), self.spec.max_response_tokens
        if longest <= limit or self.spec.overlong_prompts != "error":
            return None
        # An answer without its own column is part of the prompt.
        columns = self.spec.answer_columns(self.given) or (self.spec.prompt_key,)
        return DataProblem(
            self.spec.guidance_key or columns[lengths.index(longest)],
            f"an answer of {longest} tokens",
            f"longer than spec.data.maxResponseTokens {limit}",
            "a larger maxResponseTokens, or spec.data.overlongPrompts: drop, or truncate_right "
            "for its beginning",
        )

    def _keep_or_drop(
        self,
        candidate: Candidate,
        ids: list[int],
        teacher_ids: list[int],
        answers: Sequence[Sequence[AnswerPart]],
    ) -> None:
        row, spec, policy = candidate.row, self.spec, self.spec.overlong_prompts
        lengths = [sum(len(part.tokens) for part in one) for one in answers]
        is_overlong = (
            len(ids) > spec.max_prompt_tokens
            or len(teacher_ids) > self._max_teacher_tokens
            or max(lengths, default=0) > spec.max_response_tokens
        )
        if policy == "drop" and is_overlong:
            self.dropped += 1
            return
        if bad := self._bad_prompt(row, ids, teacher_ids) or self._bad_answer(lengths):
            self.errors.add_cell(bad, candidate.path, candidate.place)
            return
        kept: tuple[tuple[AnswerPart, ...], ...] = ()
        if self._answers is not None:
            kept = tuple(self._answers.trim(one, spec.max_response_tokens) for one in answers)
            if self.given and (not all(kept) or len({*kept}) < len(kept)):
                self.untrained += 1
                return
        if self.store is not None:
            stored = replace(
                row,
                index=self.kept,
                token_ids=truncate(ids, spec.max_prompt_tokens, policy),
                agent=self.agents.name(row) if self.agents is not None else "",
                answers=kept,
                teacher_prompt=None,
                teacher_token_ids=truncate(teacher_ids, self._max_teacher_tokens, policy),
            )
            self.store.append(stored)
        self.kept += 1
        self.good += row.ground_truth is True
        self.scored += bool(row.known_scores)
        self.guided += bool(kept)
        self.kept_of[candidate.entry] += 1
        if spec.curriculum is not None:
            self.difficulties.append(candidate.difficulty)


def truncate(ids: Sequence[int], limit: int, policy: str) -> tuple[int, ...]:
    """Truncate a prompt to ``limit`` tokens, as verl's ``data.truncation`` does.

    ``truncate_left`` drops the beginning, ``truncate_right`` the end; ``truncate_middle`` keeps
    ``limit // 2`` tokens of the beginning and the rest of the end.
    """
    if len(ids) <= limit:
        return tuple(ids)
    head = {"truncate_left": 0, "truncate_right": limit, "truncate_middle": limit // 2}[policy]
    return (*ids[:head], *ids[len(ids) - (limit - head) :])
