"""Batch metadata of the controller: prompts, lengths and scores, without tokens.

Rows are prompt-major: row `p * samples + s` is sample `s` of prompt `p`.
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
from ppojob_trainer.data.media.images import is_image, unpacked
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.data.row_checks import created_tools, selected_tools
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards.records import DROPPED, FAILED, ValueKind, value_kinds
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.messages.rollout import OF_DATA, Generated, Interaction, PromptTokens
from ppojob_trainer.rpc.messages.rows import BatchName, ScoredPrompt
from ppojob_trainer.rpc.messages.scoring import ModelScoreItem, RowScore, ScoreItem

SCORE: Final = "score"
"""Name of the score among the numbers of a row."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Generation round of a prompt, from 0, its position in that round, and its owner."""

    round: int
    position: int
    owner: int


@dataclass
class Batch:
    """The rows of one generation phase."""

    purpose: str  # `train`, `validation`, or `greedy` (the greedy baseline of training)
    step: int  # step of the loop that it belongs to
    prompts: list[PromptRow]
    samples: int  # responses per prompt
    owners: int  # ranks that own rows; each owns one contiguous range of prompts
    round: int = 0  # generation round of the step, from 0
    number: int = 0  # number of the round in the run, see `Generate`
    metadata: list[RowMetadata] = field(default_factory=list)  # (rows,) of the generated rows
    scores: list[float] = field(default_factory=list)  # (rows,) from the reward functions
    extras: list[bytes] = field(default_factory=list)  # (rows,) further values, as JSON
    # engine counters, as in `Generated`; empty if rows were read from disk
    counts: Counter[str] = field(default_factory=Counter)
    origins: list[Origin] | None = None  # (prompts,) in a batch selected from several rounds
    teacher_prompt_tokens: list[int] = field(default_factory=list)  # (rows,) if built

    @property
    def label(self) -> str:
        """Return the name of the batch within its step."""
        return self.name(0).label

    def name(self, rewinds: int) -> BatchName:
        """Return the name of the batch within its job."""
        return BatchName(rewinds, self.step, self.purpose, self.round)

    @property
    def num_rows(self) -> int:
        return len(self.prompts) * self.samples

    @property
    def lengths(self) -> list[int]:
        """Return (rows,) the number of response tokens."""
        return [row.length for row in self.metadata]

    @property
    def truncated(self) -> list[bool]:
        """Return (rows,) whether a response reached the length limit."""
        return [row.is_truncated for row in self.metadata]

    @property
    def figures(self) -> list[bytes]:
        """Return (rows,) turns and tool calls, as JSON; empty for single-turn rows."""
        return [row.figures for row in self.metadata if row.figures]

    @property
    def given_rows(self) -> set[int]:
        """Return the rows whose responses came from the data."""
        return {number for number, row in enumerate(self.metadata) if OF_DATA in row.versions}

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Return the prompt range `[first, last)` of each owner; some may be empty."""
        return spread(len(self.prompts), self.owners)

    def owners_of(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return (owner, first row, one past its last) for each owner of rows `[first, last)`."""
        owned = (
            (owner, max(first, begin * self.samples), min(last, end * self.samples))
            for owner, (begin, end) in enumerate(self.shares)
        )
        return [(owner, begin, end) for owner, begin, end in owned if begin < end]

    @property
    def index(self) -> BatchIndex:
        """Return the index of the rows and their owners."""
        sizes = tuple(len(prompt.images) for prompt in self.prompts)
        later = tuple(row.later_image_bytes for row in self.metadata)
        own = self.teacher_prompt_tokens or [
            len(one.teacher_token_ids) for one in self.prompts for _ in range(self.samples)
        ]
        return BatchIndex(
            prompt_lengths=tuple(len(prompt.token_ids) for prompt in self.prompts),
            lengths=tuple(self.lengths),
            samples=self.samples,
            owners=tuple(self.prompt_owners),
            image_bytes=sizes if any(sizes) else (),
            later_image_bytes=later if any(later) else (),
            teacher_prompt_lengths=tuple(own) if any(own) else (),
        )

    @property
    def prompt_owners(self) -> list[int]:
        """Return (prompts,) the rank that owns the rows of each prompt."""
        if self.origins is not None:
            return [origin.owner for origin in self.origins]
        return [rank for rank, (first, last) in enumerate(self.shares) for _ in range(first, last)]

    @property
    def prompts_digest(self) -> str:
        """Return the SHA-256, in hex, of the prompt numbers and samples."""
        numbers = [prompt.index for prompt in self.prompts]
        return hashlib.sha256(msgspec.json.encode([numbers, self.samples])).hexdigest()

    def prompt_of(self, row: int) -> PromptRow:
        return self.prompts[row // self.samples]

    def prompt_tokens(
        self, first: int, last: int, given: int = 0, loops: Collection[str] = ()
    ) -> list[PromptTokens]:
        """Return the message of a range of prompts, with at most `given` responses of the data.

        `loops` are the names of agent loops.
        """
        return [
            PromptTokens(
                prompt.index,
                list(prompt.token_ids),
                created_tools(prompt.extra_info),
                selected_tools(prompt.extra_info),
                interaction_of(prompt, loops),
                prompt.agent,
                prompt.images,
                list(prompt.teacher_token_ids),
                [[id_ for part in one for id_ in part.tokens] for one in prompt.answers[:given]],
            )
            for prompt in self.prompts[first:last]
        ]

    def score_items(self, first: int, last: int) -> list[ScoreItem]:
        """Return the inputs of reward functions for rows `[first, last)`."""
        lengths, truncated, figures = self.lengths, self.truncated, self.figures
        return [
            ScoreItem(
                begin,
                end,
                prompt.data_source,
                msgspec.json.encode(prompt.ground_truth),
                msgspec.json.encode(prompt.extra_info),
                lengths[begin:end],
                truncated[begin:end],
                figures[begin:end],
            )
            for prompt, begin, end in self._answers(first, last)
        ]

    def model_score_items(self, first: int, last: int) -> list[ModelScoreItem]:
        """Return the inputs of a reward model for rows `[first, last)`.

        Clips and audios are in the form of the policy, which a reward model may not read.
        """
        return [
            ModelScoreItem(
                begin,
                end,
                msgspec.json.encode(prompt.prompt),
                prompt.images if all(map(is_image, unpacked(prompt.images))) else b"",
            )
            for prompt, begin, end in self._answers(first, last)
        ]

    def scored_prompts(self, first: int, last: int) -> list[ScoredPrompt]:
        """Return prompts `[first, last)` with the scores of their rows, for the disk."""
        return [
            ScoredPrompt(
                position,
                prompt.data_source,
                msgspec.json.encode(prompt.ground_truth),
                msgspec.json.encode(prompt.extra_info),
                self.scores[position * self.samples : (position + 1) * self.samples],
                self.extras[position * self.samples : (position + 1) * self.samples],
            )
            for position, prompt in enumerate(self.prompts[first:last], start=first)
        ]

    def _answers(self, first: int, last: int) -> Iterator[tuple[PromptRow, int, int]]:
        """Return (prompt, first row, one past its last) for each prompt of rows `[first, last)`."""
        while first < last:
            position = first // self.samples
            end = min(last, (position + 1) * self.samples)
            yield self.prompts[position], first, end
            first = end

    def values(self) -> list[dict[str, float | str]]:
        """Return (rows,) the further values of the reward functions."""
        return [msgspec.json.decode(extras) for extras in self.extras]

    def value_kinds(self) -> dict[str, ValueKind]:
        """Return the names of those values, and whether they are text."""
        return value_kinds(self.values())

    def numbers(self, name: str, where: str, others: Sequence[str] = ()) -> list[float]:
        """Return (rows,) the score, or another number of the reward functions, by its name.

        RewardFailed if a row has none: its message names the field `where`, and `others`, further
        names that the field accepts.
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
                    f"got {shown(name)}: row {row} of step {self.step} has no such number; "
                    f"{' or '.join([*others, SCORE, *there])}",
                )
            found.append(value)
        return found

    def _score_of_failure(
        self, name: str, row: int, values: Mapping[str, float | str]
    ) -> float | str | None:
        """Return the number of a failed call, if `errorScore` allows failures."""
        function = "".join(name.rpartition("/")[:2])
        if not values.get(f"{function}failed"):
            return None
        return values.get(f"{function}score", self.scores[row])

    def set_metadata(self, answers: list[Generated], greedy: "Batch | None") -> None:
        """Set the metadata, also of the greedy responses, from the answers of all owners."""
        self.metadata = [row for answer in answers for row in answer.rows]
        self.counts = sum((Counter(answer.counts) for answer in answers), Counter())
        if greedy is not None:
            greedy.metadata = [row for answer in answers for row in answer.greedy]

    def set_scores(self, scores: list[RowScore]) -> None:
        """Set the scores, given in any order."""
        ordered = sorted(scores, key=lambda score: score.row)
        self.scores = [score.score for score in ordered]
        self.extras = [score.extras for score in ordered]


def interaction_of(prompt: PromptRow, loops: Collection[str]) -> Interaction | None:
    """Return a row's user simulator, or None.

    It is an agent loop (verl: `agent_name`), which gets the row, or gets
    `extra_info.interaction_kwargs`.
    """
    arguments = prompt.extra_info.get(INTERACTION)
    if prompt.agent in loops:
        arguments = {
            "name": prompt.agent,
            "data_source": prompt.data_source,
            "reward_model": {"ground_truth": prompt.ground_truth, "style": "rule"},
            "extra_info": dict(prompt.extra_info),
        }
    if not isinstance(arguments, dict) or not isinstance(name := arguments.get("name"), str):
        return None
    messages = prompt.prompt
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return Interaction(name, msgspec.json.encode(arguments), msgspec.json.encode(messages))


def outcomes_of(batch: Batch, dropped: Collection[int]) -> list[float]:
    """Return (rows,) the targets of a process reward model: the scores, NaN for dropped rows.

    RewardFailed if a score is not between 0 and 1.
    """
    outcomes = list(batch.scores)
    for row in dropped:
        outcomes[row] = math.nan
    for row, outcome in enumerate(outcomes):
        if not (0.0 <= outcome <= 1.0) and row not in dropped:
            raise RewardFailed(
                "spec.rewards",
                f"got {outcome:g} for row {row} of step {batch.step}: the process reward model of "
                "type: prime learns how right a response is; scores from 0 to 1",
            )
    return outcomes


def values_of_failure(values: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return the values that say that the reward functions of a dropped response failed."""
    return {key: one for key, one in values.items() if key.rpartition("/")[2] in (DROPPED, FAILED)}


def spread(rows: int, parts: int) -> list[tuple[int, int]]:
    """Split `rows` into `parts` ranges `[first, last)` whose sizes differ by at most one."""
    return list(itertools.pairwise(rows * part // parts for part in range(parts + 1)))


def shares(rows: int, parts: int) -> list[tuple[int, int]]:
    """Split `rows` like `spread`, into at most `parts` ranges, none of them empty."""
    return spread(rows, min(parts, rows)) if rows else []
