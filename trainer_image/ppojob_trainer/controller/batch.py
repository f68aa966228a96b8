"""What the controller knows of a batch of rows: their prompts, lengths and scores; no token.

Rows are prompt-major: row `p * samples + s` is sample `s` of prompt `p` of the batch.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.data.columns import INTERACTION
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.data.row_checks import created_tools, selected_tools
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards.records import DROPPED, FAILED, ValueKind, value_kinds
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc.messages.rollout import OF_DATA, Generated, Interaction, PromptTokens
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.messages.scoring import ModelScoreItem, RowScore, ScoreItem

SCORE: Final = "score"
"""Name of the score among the numbers of a row."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a prompt of a chosen batch comes from.

    Attributes:
        round: generation round of the step, from 0.
        position: in the batch of that round.
    """

    round: int
    position: int
    owner: int


@dataclass
class Batch:
    """The rows of one generation phase.

    Attributes:
        purpose: `train`, `validation`, or `greedy` for what training is compared with.
        prompts: in the order of the batch.
        samples: rows a prompt.
        owners: ranks that own rows, each those of one run of prompts.
        round: generation round of the step, from 0.
        number: that of the round among all of the run, as `Generate` has it.
        lengths: (rows,) response tokens.
        truncated: (rows,) whether a response ran into the limit.
        scores: (rows,) from the reward functions.
        extras: (rows,) the scorers' further variables, JSON objects.
        figures: (rows,) turns and calls of each row, JSON; none where rows have one turn.
        tool_seconds: (rows,) that calls took; none where the rows come from the disk.
        versions: (rows,) tokens by the version of the weights that drew them, or `OF_DATA`.
        later_picture_bytes: (rows,) of the pictures that each was shown behind its prompt.
        counts: what the engines have counted, as `Generated` has it; empty likewise.
        origins: (prompts,) where each prompt was drawn, in a batch chosen out of rounds.
        teacher_prompt_tokens: (rows,) of what was made for the teacher to read before each.
    """

    purpose: str
    prompts: list[PromptRow]
    samples: int
    owners: int
    round: int = 0
    number: int = 0
    lengths: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    extras: list[bytes] = field(default_factory=list)
    figures: list[bytes] = field(default_factory=list)
    tool_seconds: list[float] = field(default_factory=list)
    versions: list[dict[int, int]] = field(default_factory=list)
    later_picture_bytes: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    origins: list[Origin] | None = None
    teacher_prompt_tokens: list[int] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Names the batch within its step."""
        return self.name(0, 0).label

    def name(self, rewinds: int, step: int) -> BatchName:
        """Names the batch within its job."""
        return BatchName(rewinds, step, self.purpose, self.round)

    @property
    def num_rows(self) -> int:
        """Number of responses."""
        return len(self.prompts) * self.samples

    @property
    def given_rows(self) -> set[int]:
        """Rows whose responses were given, and not drawn."""
        return {row for row, tokens in enumerate(self.versions) if OF_DATA in tokens}

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Runs `[first, last)` of prompts, one an owner; where there are fewer, some are empty."""
        return spread(len(self.prompts), self.owners)

    def owners_of(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Who owns rows of `[first, last)`: (owner, its first of them, one past its last)."""
        owned = (
            (owner, max(first, begin * self.samples), min(last, end * self.samples))
            for owner, (begin, end) in enumerate(self.shares)
        )
        return [(owner, begin, end) for owner, begin, end in owned if begin < end]

    @property
    def index(self) -> BatchIndex:
        """Which rows there are and who owns them."""
        sizes = tuple(len(prompt.pictures) for prompt in self.prompts)
        later = tuple(self.later_picture_bytes)
        own = self.teacher_prompt_tokens or [
            len(one.teacher_token_ids) for one in self.prompts for _ in range(self.samples)
        ]
        return BatchIndex(
            prompt_lengths=tuple(len(prompt.token_ids) for prompt in self.prompts),
            lengths=tuple(self.lengths),
            samples=self.samples,
            owners=tuple(self.prompt_owners),
            picture_bytes=sizes if any(sizes) else (),
            later_picture_bytes=later if any(later) else (),
            teacher_prompt_lengths=tuple(own) if any(own) else (),
        )

    @property
    def prompt_owners(self) -> list[int]:
        """(prompts,) the rank that owns the rows of each prompt."""
        if self.origins is not None:
            return [origin.owner for origin in self.origins]
        return [rank for rank, (first, last) in enumerate(self.shares) for _ in range(first, last)]

    @property
    def prompts_digest(self) -> str:
        """SHA-256, in hex, of which prompts these are, in which order."""
        numbers = [prompt.index for prompt in self.prompts]
        return hashlib.sha256(msgspec.json.encode([numbers, self.samples])).hexdigest()

    def prompt_of(self, row: int) -> PromptRow:
        """The prompt that a row answers."""
        return self.prompts[row // self.samples]

    def prompt_tokens(self, first: int, last: int, given: int = 0) -> list[PromptTokens]:
        """A run of prompts as the ranks are told of them, with so many given responses at most."""
        return [
            PromptTokens(
                prompt.index,
                list(prompt.token_ids),
                created_tools(prompt.extra_info),
                selected_tools(prompt.extra_info),
                interaction_of(prompt),
                prompt.agent,
                prompt.pictures,
                list(prompt.teacher_token_ids),
                [[id_ for part in one for id_ in part.tokens] for one in prompt.answers[:given]],
            )
            for prompt in self.prompts[first:last]
        ]

    def score_items(self, first: int, last: int) -> list[ScoreItem]:
        """What the scorers are told of rows `[first, last)`."""
        return [
            ScoreItem(
                begin,
                end,
                prompt.data_source,
                msgspec.json.encode(prompt.ground_truth),
                msgspec.json.encode(prompt.extra_info),
                self.lengths[begin:end],
                self.truncated[begin:end],
                self.figures[begin:end],
            )
            for prompt, begin, end in self._answers(first, last)
        ]

    def model_score_items(self, first: int, last: int) -> list[ModelScoreItem]:
        """What a reward model is told of rows `[first, last)`."""
        return [
            ModelScoreItem(begin, end, msgspec.json.encode(prompt.prompt))
            for prompt, begin, end in self._answers(first, last)
        ]

    def _answers(self, first: int, last: int) -> Iterator[tuple[PromptRow, int, int]]:
        """The prompts of rows `[first, last)`: (prompt, its first of them, one past its last)."""
        while first < last:
            position = first // self.samples
            end = min(last, (position + 1) * self.samples)
            yield self.prompts[position], first, end
            first = end

    def values(self) -> list[dict[str, float | str]]:
        """What scorers gave beside the scores, in row order."""
        return [msgspec.json.decode(extras) for extras in self.extras]

    def value_kinds(self) -> dict[str, ValueKind]:
        """Names of those values, and whether they are text."""
        return value_kinds(self.values())

    def numbers(self, name: str, step: int, where: str, others: Sequence[str] = ()) -> list[float]:
        """(rows,) the score, or a number that scorers gave beside it.

        For the message, `where` is the field that names it, and `others` what it takes besides.

        Raises:
            RewardFailed: a row has no such number.
        """
        if name == SCORE:
            return list(self.scores)
        found = []
        for row, values in enumerate(self.values()):
            value = values.get(name)
            if value is None:
                value = self._score_of_failure(name, row, values)
            if value is None or isinstance(value, str):
                there = sorted(key for key, other in values.items() if not isinstance(other, str))
                raise RewardFailed(
                    where,
                    f"got {shown(name)}: row {row} of step {step} has no such number; "
                    f"{' or '.join([*others, SCORE, *there])}",
                )
            found.append(value)
        return found

    def _score_of_failure(
        self, name: str, row: int, values: Mapping[str, float | str]
    ) -> float | str | None:
        """What a call counts as that failed, where `errorScore` allows for that."""
        function = "".join(name.rpartition("/")[:2])
        if not values.get(f"{function}failed"):
            return None
        return values.get(f"{function}score", self.scores[row])

    def take_lengths(self, answers: list[Generated]) -> None:
        """Keep what the owners have generated, in the order of their runs."""
        self.lengths = [length for answer in answers for length in answer.lengths]
        self.truncated = [truncated for answer in answers for truncated in answer.truncated]
        self.figures = [figures for answer in answers for figures in answer.figures]
        self.tool_seconds = [seconds for answer in answers for seconds in answer.tool_seconds]
        self.versions = [versions for answer in answers for versions in answer.versions]
        self.counts = sum((Counter(answer.counts) for answer in answers), Counter())
        self.later_picture_bytes = [n for answer in answers for n in answer.later_picture_bytes]

    def take_scores(self, scores: list[RowScore]) -> None:
        """Keep scores that arrived in any order."""
        ordered = sorted(scores, key=lambda score: score.row)
        self.scores = [score.score for score in ordered]
        self.extras = [score.extras for score in ordered]


def interaction_of(prompt: PromptRow) -> Interaction | None:
    """The user of a row, by verl's `extra_info.interaction_kwargs`; None where it names none."""
    arguments = prompt.extra_info.get(INTERACTION)
    if not isinstance(arguments, dict) or not isinstance(name := arguments.get("name"), str):
        return None
    asked = prompt.prompt
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return Interaction(name, msgspec.json.encode(arguments), msgspec.json.encode(messages))


def outcomes_of(batch: Batch, dropped: Collection[int], step: int) -> list[float]:
    """(rows,) what a process reward model learns: the scores, NaN of rows that are dropped.

    Raises:
        RewardFailed: a score is no share of right.
    """
    outcomes = list(batch.scores)
    for row in dropped:
        outcomes[row] = math.nan
    for row, outcome in enumerate(outcomes):
        if not (0.0 <= outcome <= 1.0) and row not in dropped:
            raise RewardFailed(
                "spec.rewards",
                f"got {outcome:g} for row {row} of step {step}: the process reward model of type: "
                "prime learns how right a response is; scores from 0 to 1",
            )
    return outcomes


def values_of_failure(values: Mapping[str, float | str]) -> dict[str, float | str]:
    """What counts of a response that has no score: that it has none, and by which function."""
    told = (DROPPED, FAILED)
    return {name: value for name, value in values.items() if name.rpartition("/")[2] in told}


def spread(rows: int, parts: int) -> list[tuple[int, int]]:
    """Cut `rows` into so many runs `[first, last)` that differ by one row at most.

    Empty ones lie between the others, so that neighbours have about as many rows as others have.
    """
    return list(itertools.pairwise(rows * part // parts for part in range(parts + 1)))


def shares(rows: int, parts: int) -> list[tuple[int, int]]:
    """Cut `rows` into at most `parts` runs `[first, last)` that differ by one row at most."""
    return spread(rows, min(parts, rows)) if rows else []
