"""Prompts by number, from files that may be larger than memory."""

import bisect
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.closing import Closing
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.columns import BadCell, Cells, ColumnNames, Prompt, read_cells
from ppojob_trainer.data.row_file import BadRow
from ppojob_trainer.data.scan import RewardChecks, Scan, Scanner
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt and what its reward needs.

    Attributes:
        index: its number in the data set: ``dataset[row.index]`` is this row.
        token_ids: the prompt as the model gets it, cut to ``maxPromptTokens`` where that is the
            policy.
        prompt: the same as the file has it: text, or chat messages.
        data_source: routes to a reward.
        ground_truth: what the reward compares with.
        extra_info: whatever else the row tells.
    """

    index: int
    token_ids: tuple[int, ...]
    prompt: Prompt
    data_source: str
    ground_truth: Json
    extra_info: Mapping[str, Json]


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


class PromptDataset(Closing):
    """The rows of several files, one after the other, without those that are too long.

    Opening reads everything once and keeps eight bytes a row (sixteen of JSON lines); rows are then
    read from their file and tokenised when they are asked for.

    Args:
        scan: what the pass over the files found, without errors.
        spec: columns, limits, policy.
        chat: tokenizer.
    """

    def __init__(self, scan: Scan, spec: DataSpec, chat: ChatTokenizer) -> None:
        self._scan = scan
        self._spec = spec
        self._chat = chat
        self._names = ColumnNames(spec.prompt_key, spec.data_source_key)
        self._starts = [0, *itertools.accumulate(file.num_rows for file in scan.files)]

    @classmethod
    def open(
        cls,
        files: Sequence[DataFile],
        data_spec: DataSpec,
        chat: ChatTokenizer,
        *,
        max_rows: int | None = None,
        rewards: RewardChecks | None = None,
    ) -> Self:
        """Check every row of the files and open them as one data set.

        Args:
            files: parquet or JSON lines, read in this order.
            data_spec: columns, limits, policy for long prompts.
            chat: tokenizer; the caller closes it.
            max_rows: use the first rows only, before long ones are dropped as in verl. Departs from
                verl, which draws them at random when it shuffles: the first rows are the same with
                every seed.
            rewards: what the reward side can score; None for no check of it.

        Raises:
            ConfigError: with every problem, one line each.
        """
        scan = Scanner(data_spec, chat, rewards, max_rows).scan(files)
        if scan.errors:
            scan.close()
            raise ConfigError(scan.errors.lines())
        return cls(scan, data_spec, chat)

    def __len__(self) -> int:
        """Number of prompts to draw from."""
        return len(self._scan.kept)

    def __getitem__(self, index: int) -> PromptRow:
        """Read and tokenise one row."""
        (row,) = self.rows([index])
        return row

    @property
    def warnings(self) -> list[str]:
        """What is worth knowing about the data, one line each."""
        return self._scan.warnings.lines()

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of all that decides which prompts there are, in which order."""
        settings = self._spec.model_dump(
            mode="json",
            include={
                "prompt_key",
                "data_source_key",
                "max_prompt_tokens",
                "overlong_prompts",
                "apply_chat_template_kwargs",
            },
        )
        told = [self._scan.digests, self._scan.total, len(self), settings, self._chat.digest]
        return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()

    def rows(self, indices: Sequence[int]) -> list[PromptRow]:
        """Read and tokenise several rows, which is quicker than one by one.

        Args:
            indices: numbers in the data set, in any order; the answer is in theirs.
        """
        read: dict[int, Cells] = {}
        # In the order of the files, so that neighbours share a decoded row group.
        for index in sorted(set(indices)):
            read[index] = self._cells(index)
        prompts = [read[index].prompt for index in indices]
        encoded = self._chat.encode_prompts(prompts, self._spec.apply_chat_template_kwargs)
        return [
            self._row(index, read[index], ids) for index, ids in zip(indices, encoded, strict=True)
        ]

    def close(self) -> None:
        """Close the files."""
        self._scan.close()

    def _cells(self, index: int) -> Cells:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a data set of {len(self)} rows")
        number = self._scan.kept[index]
        position = bisect.bisect_right(self._starts, number) - 1
        file = self._scan.files[position]
        in_file = number - self._starts[position]
        try:
            return read_cells(file.read(in_file), self._names)
        except BadCell as bad:  # it was good when the data was checked
            place = f"{file.place(in_file)}:{bad.column}"
            raise BadRow(place, bad.got, bad.why, bad.allowed, bad.reason_code) from None

    def _row(self, index: int, cells: Cells, ids: list[int] | BadChatTemplate) -> PromptRow:
        if isinstance(ids, BadChatTemplate):
            raise ids
        return PromptRow(
            index,
            truncate(ids, self._spec.max_prompt_tokens, self._spec.overlong_prompts),
            cells.prompt,
            cells.data_source,
            cells.ground_truth,
            cells.extra_info,
        )
