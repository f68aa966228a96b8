"""Prompt dataset: rows by number, from files that may be larger than memory."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Self

import msgspec

from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import PAIRS, GivenType
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.order import Mixture, PromptOrder, mixture_problems
from ppojob_trainer.data.prompt_store import PromptStore
from ppojob_trainer.data.row_checks import RewardChecks, RowAgents
from ppojob_trainer.data.scan import Scan
from ppojob_trainer.errors import ConfigError

_IN_DIGEST = {
    "prompt_key",
    "data_source_key",
    "max_prompt_tokens",
    "overlong_prompts",
    "apply_chat_template_kwargs",
}
_IN_DIGEST_IF_SET = {
    "text_prompts",
    "answer_key",
    "data_source",
    "curriculum",
    "scores_key",
    "teacher_prompt_key",
    "guidance_key",
    "max_teacher_prompt_tokens",
}


class PromptDataset(PromptStore):
    """The rows of several files, concatenated, without those that are too long.

    Opening reads, checks and tokenises everything once. Later changes of the files have no effect.

    Attributes:
        digest: SHA-256, in hex, of everything that determines the prompts and their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.digest = ""
        self._rows_of: tuple[int, ...] = ()
        self._difficulties: Sequence[float] = ()

    @classmethod
    def open(
        cls,
        spec: DataSpec,
        chat: ChatTokenizer,
        *,
        rewards: RewardChecks | None = None,
        agents: RowAgents | None = None,
        sources: Collection[str] | None = None,
        given: GivenType | None = None,
    ) -> Self:
        """Check every row of the training files and open them as one dataset.

        Of the files the first `max_train_rows` are used, counted before long ones are dropped; verl
        samples them when it shuffles. Arguments are those of `Scan`; `chat` is not needed after
        this call. Raises ConfigError with every problem, one line each, and StorageError if there
        is no space for the rows.
        """
        dataset = cls()
        try:
            scan = Scan(spec, chat, rewards, agents, sources, dataset, given)
            scan.read()
            if scan.errors:
                raise ConfigError(scan.errors.lines())
            dataset.warnings = scan.warnings.lines()
            dataset.digest = digest_of(scan, spec, chat)
            dataset._rows_of = tuple(scan.kept_of)
            dataset._difficulties = scan.difficulties
        except BaseException:
            dataset.close()
            raise
        return dataset

    def order(self, spec: DataSpec, batch: int, *, field: str = "spec.data.train") -> PromptOrder:
        """Return the order of the rows, by seed, weights and curriculum, for batches of this size.

        Raises ConfigError, which names `field`, if a file has too few rows for its share of a
        batch.
        """
        seed = spec.seed or 0
        weights = [file.weight for file in spec.train if file.weight is not None]
        if not weights and spec.curriculum is None:
            return PromptOrder(len(self), seed, shuffle=spec.shuffle)
        rows: tuple[int, ...] = (len(self),)
        if weights:
            rows, paths = self._rows_of, [file.path for file in spec.train]
            if problems := mixture_problems(paths, rows, weights, batch, field=field):
                raise ConfigError(map(str, problems))
        mixture = Mixture(
            rows,
            tuple(weights or [1.0]),
            batch,
            seed,
            spec.shuffle,
            self._difficulties,
            descending=spec.curriculum is not None and spec.curriculum.order == "descending",
        )
        return PromptOrder(len(self), seed, mixture=mixture)


def digest_of(scan: Scan, spec: DataSpec, chat: ChatTokenizer) -> str:
    """Return the SHA-256, in hex, of everything that determines the prompts and their order."""
    settings = spec.model_dump(mode="json", include=_IN_DIGEST)
    settings |= spec.model_dump(mode="json", include=_IN_DIGEST_IF_SET, exclude_defaults=True)
    if scan.given:
        settings["answers"] = "learnt"
    if scan.given or spec.guidance_key is not None:
        settings["max_response_tokens"] = spec.max_response_tokens
    if scan.given in PAIRS:
        settings |= {"answers": scan.given, "pair": spec.answer_columns(scan.given)}
        if spec.margin_key is not None:
            settings["margin"] = spec.margin_key
    if scan.given == "kto":
        settings |= {"answers": scan.given, "label": spec.label_key}
        if spec.split_pairs:
            settings["label"] = spec.answer_columns(scan.given)
    limits = [file.max_rows for file in spec.train]
    if any(limit is not None for limit in limits):
        settings["max_rows"] = limits
    if scan.media_digest is not None:
        settings["pictures"] = scan.media_digest.hexdigest()
    inputs = [scan.digests, scan.reader.total, scan.kept, settings, chat.digest]
    return hashlib.sha256(msgspec.json.encode(inputs, order="sorted")).hexdigest()
