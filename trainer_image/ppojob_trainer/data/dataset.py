"""Prompts by number, from files that may be larger than memory."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.prompt_store import PromptRow, PromptStore
from ppojob_trainer.data.scan import RewardChecks, Scan, Scanner
from ppojob_trainer.errors import ConfigError


class PromptDataset(Closeable):
    """The rows of several files, one after the other, without those that are too long.

    Opening reads, checks and tokenises everything once. What becomes of the files later changes
    nothing.

    Args:
        scan: what the pass over the files found, without errors.
        store: the rows.
        digest: SHA-256, in hex, of all that decides which prompts there are, in which order.
    """

    def __init__(self, scan: Scan, store: PromptStore, digest: str) -> None:
        self._store = store
        self.warnings = scan.warnings.lines()
        self.digest = digest

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
            chat: tokenizer; the caller closes it, and may do so now.
            max_rows: use the first rows only, before long ones are dropped as in verl. Departs from
                verl, which draws them at random when it shuffles: the first rows are the same with
                every seed.
            rewards: what the reward side can score; None for no check of it.

        Raises:
            ConfigError: with every problem, one line each.
            StorageError: there is no room for the rows in the folder of temporary files.
        """
        store = PromptStore()
        try:
            scan = Scanner(data_spec, chat, rewards, max_rows, store=store).scan(files)
            if scan.errors:
                raise ConfigError(scan.errors.lines())
            return cls(scan, store, _digest(scan, data_spec, chat))
        except BaseException:
            store.close()
            raise

    def __len__(self) -> int:
        """Number of prompts to draw from."""
        return len(self._store)

    def __getitem__(self, index: int) -> PromptRow:
        """One row."""
        return self._store.read(index)

    def rows(self, indices: Iterable[int]) -> list[PromptRow]:
        """Several rows, in the order of their numbers as given."""
        return [self._store.read(index) for index in indices]

    def close(self) -> None:
        """Give the rows back."""
        self._store.close()


def _digest(scan: Scan, spec: DataSpec, chat: ChatTokenizer) -> str:
    settings = spec.model_dump(
        mode="json",
        include={
            "prompt_key",
            "data_source_key",
            "max_prompt_tokens",
            "overlong_prompts",
            "apply_chat_template_kwargs",
        },
    )
    own = spec.model_dump(
        mode="json",
        include={"text_prompts", "answer_key", "data_source"},
        exclude_defaults=True,
    )
    settings |= own
    told = [scan.digests, scan.total, scan.kept, settings, chat.digest]
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
