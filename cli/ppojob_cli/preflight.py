"""Finds all that is wrong with a job and its inputs, before anything is started."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ppojob_api import validation
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_api.topology import calls_tools, retrieved_tools
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_cli.agent_checks import check_agent, text_prompt_warning
from ppojob_cli.commit_checks import check_commits, uncommitted_warning
from ppojob_cli.machine_checks import (
    check_gpus,
    check_lifecycle,
    check_memory,
    check_trackers,
    check_versions,
    check_vllm,
    threads_warning,
    vllm_builds,
)
from ppojob_cli.model_checks import check_critic, check_reward_model
from ppojob_cli.output_checks import check_output, volatile_warning
from ppojob_trainer.agents.named import row_agents
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files, unusable_files
from ppojob_trainer.errors import ConfigError, JobFailed, RewardFailed
from ppojob_trainer.models.architectures import check_targets
from ppojob_trainer.models.folder_checks import ModelReport, check_model_folder
from ppojob_trainer.models.tokenizer_fit import check_tokenizer_fit
from ppojob_trainer.pod_environment import variables_of_code
from ppojob_trainer.retrieval.manifest import check_memory as check_index_memory
from ppojob_trainer.retrieval.manifest import read_manifest
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.row_checks import row_checks
from ppojob_trainer.tools.built_in.search import passages_a_query
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.schemas import tool_schemas
from ppojob_trainer.trackers.libraries import missing_modules


@dataclass(slots=True)
class Preflight:
    """What was found, a line each.

    Attributes:
        errors: what must be mended; nothing is started while there are any.
        parameters: weights of the policy; None where they are not known.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    parameters: int | None = None


def check_run(config: RunConfig, output: Path) -> Preflight:
    """Judge all that a run needs: its inputs, this machine, its folder; nothing is left there."""
    found = check_inputs(config)
    found.errors += map(
        str,
        [
            *check_gpus(config),
            *check_memory(config),
            *check_lifecycle(config),
            *check_versions(config),
            *check_vllm(config, vllm_builds()),
            *check_trackers(config, missing_modules()),
            *check_output(config, output, found.parameters),
        ],
    )
    refusals = check_commits(config, output)
    found.errors += refusals
    if not refusals:
        found.warnings += map(str, uncommitted_warning(output))
    found.warnings += map(str, [*threads_warning(config), *volatile_warning(output)])
    return found


def check_inputs(config: RunConfig) -> Preflight:
    """Judge everything that a job names, as its pods will read it.

    No check waits for another to be content, but where it would have nothing to look at.
    """
    found = Preflight(warnings=[str(one) for one in validation.warnings(config.job())])
    model = check_model_folder(
        Path(config.spec.model.path), trust_remote_code=config.spec.model.trust_remote_code
    )
    found.parameters = model.parameters
    targets = check_targets(config.spec.model)
    found.errors += map(str, [*model.errors, *_context(config.spec, model), *targets])
    found.warnings += map(str, model.warnings)
    largest_token_id = _check_data(config, model, found)
    critic = check_critic(config.spec, largest_token_id)
    found.errors += map(str, critic.errors)
    found.warnings += map(str, critic.warnings)
    _check_reward_model(config.spec, found)
    found.errors += [*_rewards(config.spec), *_tools(config.spec), *_retriever(config.spec)]
    found.errors += map(str, _recording(config.spec))
    return found


def _context(spec: PPOJobSpec, model: ModelReport) -> Iterator[Problem]:
    """Rows that may get longer than the model was made for."""
    longest, limit = spec.rollout.max_model_tokens, model.context_tokens
    if longest is None or limit is None or longest <= limit:
        return
    prompt, response = spec.data.max_prompt_tokens, spec.data.max_response_tokens
    needed = f"maxPromptTokens {prompt} + maxResponseTokens {response}"
    yield Problem(
        "spec.rollout.maxModelTokens",
        shown(longest),
        f"{needed} is to fit, and the model was made for {limit}",
        f"at most {limit}",
        ReasonCode.OUT_OF_RANGE,
    )


def _check_data(config: RunConfig, model: ModelReport, found: Preflight) -> int | None:
    """Tokenizer, chat template and rows; answers the largest token id where there is one."""
    spec = config.spec
    folder = spec.model.tokenizer_path or spec.model.path
    if folder == spec.model.path and not os.path.isdir(folder):
        found.errors += unusable_files(spec.data)  # that the folder is missing has been said
        return None
    try:
        tools = tool_schemas(spec.agent)
        chat = ChatTokenizer(spec.model.path, folder, spec.model.chat_template, tools=tools)
    except ConfigError as problem:
        found.errors += [*problem.problems, *unusable_files(spec.data)]
        return None
    with chat:
        fit = check_tokenizer_fit(chat, model.vocabulary, Path(folder), spec.rollout.stop_token_ids)
        found.errors += map(str, fit)
        try:
            errors, warnings = check_agent(spec, chat)
        except ConfigError as problem:
            errors, warnings = list(problem.problems), []
        found.errors += errors
        found.warnings += warnings
        report = check_files(
            spec.data,
            chat,
            rewards=row_checks(spec.rewards, has_model=spec.reward_model is not None),
            agents=row_agents(spec.agent),
            draw=spec.algorithm.draw,
        )
    found.errors += report.errors
    if not report.errors:
        job, rows = config.job(), report.train_rows
        found.errors += map(str, validation.check_length(job, rows))
        found.warnings += map(str, validation.length_warnings(job, rows))
    found.warnings += report.warnings
    found.warnings += map(str, text_prompt_warning(spec, report.text_prompt))
    return chat.largest_token_id


def _check_reward_model(spec: PPOJobSpec, found: Preflight) -> None:
    """Folder and tokenizer of the reward model, where there is one."""
    if spec.reward_model is not None:
        report, unfit = check_reward_model(spec.reward_model)
        found.errors += [*map(str, report.errors), *unfit]
        found.warnings += map(str, report.warnings)


def _recording(spec: PPOJobSpec) -> Iterator[Problem]:
    """The run whose rows are trained on again."""
    replay = spec.rollout.replay
    if replay is not None and not (Path(replay) / CHECKPOINTS_FOLDER / JOURNAL_NAME).is_file():
        yield Problem(
            "spec.rollout.replay",
            shown(replay),
            "there is no run in it",
            "the run folder of a job that has done a step",
            ReasonCode.UNREADABLE,
        )


def _rewards(spec: PPOJobSpec) -> list[str]:
    """Load the reward functions once, in a process like those that will call them."""
    if not spec.rewards:
        return []  # scorers that are built in
    try:
        variables = variables_of_code("reward")
        ScoringPool(spec.rewards, sandbox=spec.sandbox, variables=variables).close()
    except (ConfigError, RewardFailed) as problem:
        return str(problem).splitlines()
    return []


def _tools(spec: PPOJobSpec) -> list[str]:
    """Load tools and users once, in the same way."""
    if not calls_tools(spec):
        return []
    elsewhere = [tool.name for tool in retrieved_tools(spec)]
    variables = variables_of_code("tools")
    try:
        assert spec.agent is not None
        ToolPool(spec.agent, sandbox=spec.sandbox, variables=variables, elsewhere=elsewhere).close()
    except (ConfigError, JobFailed) as problem:
        return str(problem).splitlines()
    return []


def _retriever(spec: PPOJobSpec) -> list[str]:
    """What the index says of itself; its files are held against that where it is opened."""
    problems: list[str] = []
    for tool in retrieved_tools(spec):
        assert spec.agent is not None
        assert spec.agent.retriever is not None
        folder = Path(spec.agent.retriever.index)
        try:
            check_index_memory(read_manifest(folder), folder)
        except ConfigError as problem:
            problems += [f"spec.agent.retriever.index: {line}" for line in problem.problems]
        try:
            passages_a_query(tool.config)
        except ConfigError as problem:
            place = spec.agent.tools.index(tool)
            problems += [f"spec.agent.tools[{place}].{line}" for line in problem.problems]
    return problems
