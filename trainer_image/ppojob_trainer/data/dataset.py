"""Prompts by number, from files that may be larger than memory."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.order import Mixture, Passes, PromptOrder, mixture_problems
from ppojob_trainer.data.prompt_store import PromptRow, PromptStore
from ppojob_trainer.data.row_agents import RowAgents
from ppojob_trainer.data.row_checks import RewardChecks
from ppojob_trainer.data.scan import Scan, Scanner
from ppojob_trainer.errors import ConfigError


class PromptDataset(Closeable):
    """The rows of several files, one after the other, without those that are too long.

    Opening reads, checks and tokenises everything once. What becomes of the files later changes
    nothing.

    Args:
        scan: what the pass over the files found, without errors.
        digest: SHA-256, in hex, of all that decides which prompts there are, in which order.
    """

    def __init__(self, scan: Scan, store: PromptStore, digest: str) -> None:
        self._store = store
        self.warnings = scan.warnings.lines()
        self.digest = digest
        self._rows_of = tuple(scan.kept_of)
        self._difficulties = scan.difficulties

    @classmethod
    def open(
        cls,
        files: Sequence[DataFile],
        data_spec: DataSpec,
        chat: ChatTokenizer,
        *,
        max_rows: int | None = None,
        rewards: RewardChecks | None = None,
        agents: RowAgents | None = None,
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
            agents: who answers in rows that are conversations; None where none is.

        Raises:
            ConfigError: with every problem, one line each.
            StorageError: there is no room for the rows in the folder of temporary files.
        """
        store = PromptStore()
        try:
            scan = Scanner(data_spec, chat, rewards, agents, max_rows, store=store).scan(files)
            if scan.errors:
                raise ConfigError(scan.errors.lines())
            return cls(scan, store, _digest(scan, files, data_spec, chat))
        except BaseException:
            store.close()
            raise

    def __len__(self) -> int:
        """Number of prompts to draw from."""
        return len(self._store)

    def __getitem__(self, index: int) -> PromptRow:
        """One row."""
        return self._store.read(index)

    def order(self, spec: DataSpec, batch: int) -> PromptOrder:
        """The order in which batches of prompts are drawn.

        Args:
            spec: weights of the training files, curriculum, seed.
            batch: prompts that are drawn at once.

        Raises:
            ConfigError: a file has too few rows for its share of a batch.
        """
        seed = spec.seed or 0
        weights = [file.weight for file in spec.train if file.weight is not None]
        if not weights and spec.curriculum is None:
            return PromptOrder(len(self), seed, shuffle=spec.shuffle)
        rows: tuple[int, ...] = (len(self),)
        if weights:
            rows, paths = self._rows_of, [file.path for file in spec.train]
            if problems := mixture_problems(paths, rows, weights, batch):
                raise ConfigError(map(str, problems))
        passes = Passes(
            seed,
            shuffle=spec.shuffle,
            difficulties=self._difficulties,
            descending=spec.curriculum is not None and spec.curriculum.order == "descending",
        )
        mixture = Mixture(rows, tuple(weights or [1.0]), batch, passes)
        return PromptOrder(len(self), seed, mixture=mixture)

    def rows(self, indices: Iterable[int]) -> list[PromptRow]:
        """Several rows, in the order of their numbers as given."""
        return [self._store.read(index) for index in indices]

    def close(self) -> None:
        """Give the rows back."""
        self._store.close()


def _digest(scan: Scan, files: Sequence[DataFile], spec: DataSpec, chat: ChatTokenizer) -> str:
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
        include={"text_prompts", "answer_key", "data_source", "curriculum"},
        exclude_defaults=True,
    )
    settings |= own
    limits = [file.max_rows for file in files]
    if any(limit is not None for limit in limits):
        settings["max_rows"] = limits
    told = [scan.digests, scan.total, scan.kept, settings, chat.digest]
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
