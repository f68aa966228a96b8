"""The data of a job, opened as its settings say."""

import contextlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.training import DataFile, DataSpec
from ppojob_api.validation import check_length, length_warnings
from ppojob_trainer.agents.named import row_agents
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.picture_forms import why_blind
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rewards.row_checks import checks_of
from ppojob_trainer.tools.schemas import tool_schemas

_log = logging.getLogger(__name__)


def open_prompts(
    config: RunConfig, began: float, stack: contextlib.ExitStack
) -> tuple[PromptDataset, PromptDataset | None]:
    """Open the training prompts, and those that are held out, if any.

    A job that only generates has the latter in both places. Templates take `began`, unix seconds
    at which the job began, for the present time.

    Raises:
        ConfigError: the data cannot be read, or does not fit the job.
    """
    spec = config.spec
    model = Path(spec.model.path)
    tokenizer = Path(spec.model.tokenizer_path or spec.model.path)
    chat = stack.enter_context(
        ChatTokenizer(
            model,
            tokenizer,
            spec.model.chat_template,
            began=began,
            tools=tool_schemas(spec.agent),
            blind=why_blind(spec),
        )
    )
    agents = row_agents(spec.agent)

    def opened(
        files: Sequence[DataFile],
        data: DataSpec,
        max_rows: int | None,
        sources: Collection[str] | None = None,
    ) -> PromptDataset:
        rewards = checks_of(spec)
        dataset = stack.enter_context(
            PromptDataset.open(
                files,
                data,
                chat,
                rewards=rewards,
                agents=agents,
                sources=sources,
                max_rows=max_rows,
                given=spec.algorithm.given,
            )
        )
        for warning in dataset.warnings:
            _log.warning("%s", warning)
        return dataset

    data = spec.prompts
    train = opened(data.train, data, data.max_train_rows, spec.compared_sources)
    if spec.steps.generate_only:
        return train, train
    _check_size(config, len(train))
    validation = None
    if data.validation:
        validation = opened(data.validation, data.of_validation, data.max_validation_rows)
    return train, validation


def _check_size(config: RunConfig, rows: int) -> None:
    """Refuse usable rows that are too few for a step, or make steps that the job cannot have."""
    field, drawn = config.spec.algorithm.draw
    if rows < drawn:
        raise ConfigError(
            f"spec.algorithm.{field}: got {drawn}: the training data has {rows} usable rows; at "
            "most that many, or more data"
        )
    if problems := check_length(config.job(), rows):
        raise ConfigError(map(str, problems))
    for problem in length_warnings(config.job(), rows):
        _log.warning("%s", problem)
