"""Datasets of a job."""

import contextlib
import logging
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_api.validation import check_length, length_warnings
from ppojob_trainer.agents.named import row_agents
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.media.image_forms import why_no_images
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rewards.row_checks import checks_of
from ppojob_trainer.tools.schemas import tool_schemas

_log = logging.getLogger(__name__)


class Datasets(NamedTuple):
    """The datasets of a job."""

    train: PromptDataset
    validation: PromptDataset | None = None
    demonstrations: PromptDataset | None = None

    @property
    def digests(self) -> list[str | None]:
        """Return the digests of train, validation (or None) and demonstrations, if any."""
        validation = None if self.validation is None else self.validation.digest
        demonstrations = [] if self.demonstrations is None else [self.demonstrations.digest]
        return [self.train.digest, validation, *demonstrations]


def open_datasets(config: RunConfig, began: float, stack: contextlib.ExitStack) -> Datasets:
    """Open the datasets of a job; those of a generation-only job are the same.

    Chat templates get `began`, the job's start in unix seconds, as the current time. ConfigError if
    the data is unreadable or does not fit the job.
    """
    spec = config.spec
    tokenizer = Path(spec.model.tokenizer_path or spec.model.path)
    chat = stack.enter_context(
        ChatTokenizer(
            Path(spec.model.path),
            tokenizer,
            spec.model.chat_template,
            began=began,
            tools=tool_schemas(spec.agent),
            why_no_images=why_no_images(spec),
        )
    )
    agents = row_agents(spec.agent)

    def opened(
        data: DataSpec,
        sources: Collection[str] | None = None,
        given: GivenType | None = spec.algorithm.given,
    ) -> PromptDataset:
        rewards = checks_of(spec)
        dataset = stack.enter_context(
            PromptDataset.open(
                data, chat, rewards=rewards, agents=agents, sources=sources, given=given
            )
        )
        for warning in dataset.warnings:
            _log.warning("%s", warning)
        return dataset

    data = spec.prompts
    train = opened(data, spec.compared_sources)
    if spec.steps.generate_only:
        return Datasets(train, train)
    _check_length(config, len(train))
    validation = None
    if data.validation:
        validation = opened(data.of_validation)
    if spec.supervised is None:
        return Datasets(train, validation)
    size = spec.supervised.rows_per_step or 1
    demonstrations = opened(data.of_demonstrations, given="sft")
    _check_size("supervised.rowsPerStep", size, "spec.data.demonstrations", len(demonstrations))
    return Datasets(train, validation, demonstrations)


def _check_size(field: str, size: int, data: str, rows: int) -> None:
    if rows < size:
        raise ConfigError(
            f"spec.algorithm.{field}: got {size}: {data} has {rows} usable rows; at most that "
            "many, or more data"
        )


def _check_length(config: RunConfig, rows: int) -> None:
    _check_size(*config.spec.algorithm.draw, "the training data", rows)
    if problems := check_length(config.job(), rows):
        raise ConfigError(map(str, problems))
    for problem in length_warnings(config.job(), rows):
        _log.warning("%s", problem)
