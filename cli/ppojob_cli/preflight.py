"""Preflight: all problems of a job and its inputs, before anything is started."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ppojob_api import validation
from ppojob_api.problem import Problem, ReasonCode, printable, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_api.topology import calls_tools, retrieved_tools
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.model import ModelSpec
from ppojob_api.v1alpha1.rollout import JudgeSpec, RewardModelSpec, RewardSpec
from ppojob_api.v1alpha1.training import CriticSpec
from ppojob_cli.agent_checks import check_agent, text_prompt_warning
from ppojob_cli.machine_checks import machine_problems, threads_warning
from ppojob_cli.output_checks import (
    check_checkpoints,
    check_output,
    unsaved_steps_warning,
    volatile_warning,
)
from ppojob_trainer.agents.named import row_agents
from ppojob_trainer.checkpoint import branches
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME
from ppojob_trainer.controller.row_tape import read_recording
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files, unusable_files
from ppojob_trainer.data.media.image_forms import why_no_images
from ppojob_trainer.data.prompt_store import PromptStore
from ppojob_trainer.data.row_sampler import RowSampler
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.errors import ConfigError, JobFailed, RewardFailed
from ppojob_trainer.models import kinds
from ppojob_trainer.models.adapter_files import check_adapters
from ppojob_trainer.models.cache_checks import check_cache
from ppojob_trainer.models.config_changes import can_be_stretched, check_overrides, config_changes
from ppojob_trainer.models.folder_checks import ModelReport, check_model_folder
from ppojob_trainer.models.layout_checks import check_layouts, check_targets
from ppojob_trainer.models.memory import GIB, least_cache
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.tokenizer_fit import (
    check_rows,
    check_same_tokens,
    check_score_fit,
    check_tokenizer_fit,
)
from ppojob_trainer.pod_environment import variables_of_code
from ppojob_trainer.retrieval.manifest import check_memory, read_manifest
from ppojob_trainer.rewards.judge import ANSWER_TOKENS
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.row_checks import checks_of
from ppojob_trainer.rewards.wire import Judge
from ppojob_trainer.rollout.engine_arguments import check_arguments
from ppojob_trainer.rollout.structured_output import check_structured_output
from ppojob_trainer.tools.built_in.search import passages_a_query
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.row_calls import RowCalls
from ppojob_trainer.tools.schemas import tool_schemas

_IMPORT_SECONDS = 120
_CONVERSATION = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})


@dataclass(slots=True)
class Preflight:
    """Results of the checks, a line each."""

    errors: list[str] = field(default_factory=list)  # problems because of which nothing is started
    warnings: list[str] = field(default_factory=list)
    parameters: int | None = None  # number of the policy's weights; None if unknown
    rows: int | None = None  # number of training rows; None if not counted
    digests: Mapping[str, str] = field(default_factory=dict)  # of `DataReport`

    def add(self, errors: Iterable[object], warnings: Iterable[object] = ()) -> None:
        self.errors += map(str, errors)
        self.warnings += map(str, warnings)

    @contextmanager
    def refusals(self, where: str = "") -> Iterator[None]:
        """Add errors of the job or its code that the block raises, and continue after the block."""
        try:
            yield
        except (ConfigError, JobFailed, RewardFailed) as problem:
            self.add(f"{where}{line}" for line in str(problem).splitlines())


def check_run(config: RunConfig, output: Path) -> Preflight:
    """Check everything that a run needs: inputs, machine and run folder; leaves no files."""
    found = check_inputs(config)
    found.add([*machine_problems(config), *check_output(config, output, found.parameters)])
    begun = branches.problems(config, output, found.rows)
    refusals = [*check_checkpoints(config, output, found.digests), *begun]
    found.add(refusals, [] if refusals else unsaved_steps_warning(output))
    found.add([], [*threads_warning(config), *volatile_warning(output)])
    return found


def check_inputs(config: RunConfig) -> Preflight:
    """Check all inputs of a job as its pods will read them.

    All checks run, also after errors, as far as their inputs can be read.
    """
    spec, found = config.spec, Preflight()
    found.add([], validation.warnings(config.job()))
    kind = kinds.SCORER if spec.algorithm.type == "reward_model" else kinds.POLICY
    overrides = config_changes(spec.model.path, spec.model)
    model = check_model_folder(Path(spec.model.path), kind, overrides)
    found.parameters = model.parameters
    misfits = [*check_overrides(spec.model), *_context(spec, model), *check_layouts(spec)]
    misfits += check_cache(spec)
    if spec.reference is None:
        misfits += _teacher_context(spec, kinds.POLICY.where, model)
    misfits += check_arguments(spec.rollout.engine_arguments)
    adapted: dict[str, ModelSpec | CriticSpec | None] = {"model": spec.model, "critic": spec.critic}
    for name, one in adapted.items():
        if one is not None and one.lora is not None and one.path is not None:
            section = f"spec.{name}.lora"
            misfits += check_targets(one.lora, one.path, section)
            misfits += check_adapters(one.lora, one.path, section)
    found.add([*model.errors, *misfits], model.warnings)
    tools = Preflight()
    calls = _check_tools(spec, tools)
    vocabulary = _check_data(config, model, calls, found)
    if not spec.steps.generate_only:
        _check_critic(spec, vocabulary, found)
        _check_references(spec, vocabulary, model, found)
        if spec.reward_model is not None:
            _check_reward_model(spec.reward_model, found)
        if spec.judge is not None:
            _check_judge(spec.judge, spec.roles.judge.gpus_per_replica, found)
            found.add(list(_too_long_answers(spec.judge, spec.rewards)))
        _check_rewards(spec, found)
        _check_sampler(spec, found)
        found.add(_custom_functions(spec))
    found.add(tools.errors)
    _check_retriever(spec, found)
    _check_recording(spec, found)
    return found


def _context(spec: PPOJobSpec, model: ModelReport) -> Iterator[Problem]:
    prompt, response = spec.data.max_prompt_tokens, spec.data.max_response_tokens
    where, longest = "spec.rollout.maxModelTokens", spec.rollout.max_model_tokens
    if spec.algorithm.given:
        where, longest = "spec.data.maxResponseTokens", prompt + response
    limit = model.context_tokens
    if longest is None or limit is None or longest <= limit:
        return
    most = f"at most {limit}"
    if spec.algorithm.given:
        most = f"at most {limit - prompt}" if prompt < limit else "a smaller maxPromptTokens, too"
    if can_be_stretched(spec.model.path):
        most += ", or spec.model.ropeScaling"
    got = shown(response if spec.algorithm.given else longest)
    needed = f"maxPromptTokens {prompt} + maxResponseTokens {response}"
    why = f"{needed} is to fit, and the model was made for {limit}"
    yield Problem(where, got, why, most, ReasonCode.OUT_OF_RANGE)


def _teacher_context(spec: PPOJobSpec, where: str, reference: ModelReport) -> Iterator[Problem]:
    """Check that the longest rows with the reference's own prompts fit its context."""
    prompt, response = spec.data.max_teacher_prompt_tokens, spec.data.max_response_tokens
    limit = reference.context_tokens
    if prompt is None or limit is None or prompt + response <= limit:
        return
    why = f"maxResponseTokens {response} is to fit behind it, and the model of {where} was made for"
    allowed = f"at most {max(0, limit - response)}, or a model made for more"
    field, code = "spec.data.maxTeacherPromptTokens", ReasonCode.OUT_OF_RANGE
    yield Problem(field, shown(prompt), f"{why} {limit} tokens", allowed, code)


def _check_data(
    config: RunConfig, model: ModelReport, calls: RowCalls, found: Preflight
) -> Mapping[str, int] | None:
    """Check tokenizer, chat template and rows; return the vocabulary if it can be read."""
    spec, given = config.spec, config.spec.algorithm.given
    folder = spec.model.tokenizer_path or spec.model.path
    is_missing = any(one.reason_code == ModelReason.MODEL_MISSING for one in model.errors)
    has_tokenizer = os.path.isfile(os.path.join(folder, "tokenizer.json"))
    if folder == spec.model.path and is_missing and not has_tokenizer:
        # The missing model has been reported.
        found.add(unusable_files(spec.prompts, given=given))
        return None
    try:
        tools = tool_schemas(spec.agent)
        chat = ChatTokenizer(
            spec.model.path,
            folder,
            spec.model.chat_template,
            tools=tools,
            why_no_images=why_no_images(spec),
        )
    except ConfigError as problem:
        found.add([*problem.problems, *unusable_files(spec.prompts, given=given)])
        return None
    with chat:
        stops = spec.rollout.stop_token_ids
        found.add(check_tokenizer_fit(chat, model.vocabulary, Path(folder), stops))
        found.add(check_structured_output(spec.rollout.structured_output, chat, Path(folder)))
        with found.refusals():
            found.add(*check_agent(spec, chat))
        report = check_files(
            spec.prompts,
            chat,
            rewards=checks_of(spec),
            agents=row_agents(spec.agent, calls),
            sources=spec.compared_sources,
            draw=None if spec.steps.generate_only else spec.algorithm.draw,
            given=given,
            demonstrations=spec.supervised.rows_per_step if spec.supervised else None,
        )
    found.add(report.errors)
    found.digests = report.digests
    if not report.errors and not spec.steps.generate_only:
        job, rows = config.job(), report.train_rows
        found.rows = rows
        found.add(validation.check_length(job, rows), validation.length_warnings(job, rows))
    found.add([], [*report.warnings, *text_prompt_warning(spec, report.text_prompt)])
    return chat.vocabulary


def _check_critic(spec: PPOJobSpec, vocabulary: Mapping[str, int] | None, found: Preflight) -> None:
    """Check a value model's folder, unless it is the policy's.

    It reads the policy's rows, with the same token ids.
    """
    critic = spec.critic
    if critic is None or critic.path is None or spec.algorithm.estimator.critic != "value":
        return
    if critic.path == spec.model.path:
        return
    report = _check_reader(spec, Path(critic.path), kinds.CRITIC, found)
    rows = report.vocabulary
    largest = max((vocabulary or {}).values(), default=-1)
    if rows is not None and largest >= rows:
        got, allowed = f"an embedding of {rows} rows", "a model with the policy's tokenizer"
        why = f"it reads the policy's token ids, which go up to {largest}"
        found.add([Problem(kinds.CRITIC.where, got, why, allowed, ModelReason.VOCABULARY)])


def _check_references(
    spec: PPOJobSpec, vocabulary: Mapping[str, int] | None, policy: ModelReport, found: Preflight
) -> None:
    """Check the folders of models that compute logprobs of the policy's tokens.

    These are references, process reward models, and the references of the latter.
    """
    tensor = spec.roles.actor_rollout.parallelism.tensor
    is_cut = spec.algorithm.compares_vocabularies and tensor > 1
    folders: dict[str, str | None] = {}
    if (reference := spec.reference) is not None:
        folders[kinds.REFERENCE.where] = reference.path
        teachers = enumerate(reference.teachers)
        folders |= {f"spec.reference.teachers[{n}].path": one.path for n, one in teachers}
    if (critic := spec.critic) is not None and spec.algorithm.estimator.critic == "process_reward":
        own = {"path": critic.path, "referencePath": critic.reference_path}
        others = {name: path for name, path in own.items() if path != spec.model.path}
        folders |= {f"spec.critic.{name}": path for name, path in others.items()}
    for where, path in folders.items():
        if path is None:
            continue
        folder, kind = Path(path), replace(kinds.REFERENCE, where=where)
        report = _check_reader(spec, folder, kind, found)
        is_cut_alike = is_cut and where.startswith("spec.reference.")
        if where.startswith("spec.reference."):
            found.add([*_teacher_context(spec, where, report)])
        rows = (report.vocabulary, policy.vocabulary)
        found.add(check_rows(where, *rows, is_cut=is_cut_alike))
        with found.refusals():
            found.add(check_same_tokens(vocabulary or {}, folder))


def _check_reader(
    spec: PPOJobSpec, folder: Path, kind: kinds.ModelKind, found: Preflight
) -> ModelReport:
    """Check the folder of a model that reads the policy's rows, and its context."""
    report = check_model_folder(folder, kind, config_changes(folder, spec.model))
    found.add(report.errors, report.warnings)
    longest, limit = spec.rollout.max_model_tokens, report.context_tokens
    if longest is not None and limit is not None and limit < longest:
        got, why = f"a model made for {limit} tokens", f"spec.rollout.maxModelTokens is {longest}"
        allowed = "a model made for as many, or shorter rows"
        found.add([Problem(kind.where, got, why, allowed, ReasonCode.OUT_OF_RANGE)])
    return report


def _check_reward_model(spec: RewardModelSpec, found: Preflight) -> None:
    report = check_model_folder(Path(spec.path), kinds.REWARD)
    found.add(report.errors, report.warnings)
    folder = Path(spec.tokenizer_path or spec.path)
    if not folder.is_dir() and folder == Path(spec.path):
        return  # the missing folder has been reported
    setting = "spec.rewardModel.chatTemplate"
    with (
        found.refusals(),
        ChatTokenizer(spec.path, folder, spec.chat_template, setting=setting) as chat,
    ):
        unfit = check_score_fit(
            max_tokens=spec.max_tokens,
            context_tokens=report.context_tokens,
            largest_token_id=chat.largest_token_id,
            vocabulary=report.vocabulary,
        )
        found.add([*unfit, *_template_refusals(chat)])


def _check_judge(spec: JudgeSpec, gpus: int, found: Preflight) -> None:
    report = check_model_folder(Path(spec.path), kinds.JUDGE)
    found.add(report.errors, report.warnings)
    limit, longest = report.context_tokens, spec.max_tokens
    if limit is not None and longest is not None and longest > limit:
        why, allowed = f"the model was made for {limit}", f"at most {limit}"
        where, code = "spec.judge.maxTokens", ReasonCode.OUT_OF_RANGE
        found.add([Problem(where, shown(longest), why, allowed, code)])
    tokens, cache = longest or limit or 0, spec.kv_cache_gib
    least = least_cache(spec.path, spec.dtype, tokens, max(1, gpus))
    if cache is not None and int(cache * GIB) < least:
        why = f"a text of {tokens} tokens takes {least / GIB:.3g} of it at least"
        where, allowed = "spec.judge.kvCacheGib", "that or more, or a smaller spec.judge.maxTokens"
        found.add([Problem(where, shown(cache), why, allowed, ReasonCode.OUT_OF_RANGE)])
    if not Path(spec.path).is_dir():
        return  # the missing folder has been reported
    setting = "a template of its own"
    with found.refusals(), ChatTokenizer(spec.path, spec.path, None, setting=setting) as chat:
        if not chat.has_template:
            why, allowed = "it has no chat template, which a judge requires", "a model that has one"
            where, code = kinds.JUDGE.where, ReasonCode.REQUIRED
            found.add([Problem(where, shown(spec.path), why, allowed, code)])


def _too_long_answers(judge: JudgeSpec, rewards: Sequence[RewardSpec]) -> Iterator[Problem]:
    """Yield answers of the judge that take all of its tokens, without any for the prompt."""
    for number, reward in enumerate(rewards):
        answer_tokens = reward.arguments.get("max_tokens", ANSWER_TOKENS)
        is_judged = reward.function == "judge" and not reward.arguments.get("url")
        if not is_judged or judge.max_tokens is None or not isinstance(answer_tokens, int | float):
            continue
        if answer_tokens >= judge.max_tokens:
            where = f"spec.rewards[{number}].arguments.max_tokens"
            why = f"with the prompt it is more than spec.judge.maxTokens {judge.max_tokens}"
            code = ReasonCode.OUT_OF_RANGE
            yield Problem(where, shown(answer_tokens), why, "less, or a judge of more", code)


def _template_refusals(chat: ChatTokenizer) -> tuple[str, ...]:
    """Return the template's errors on a simple conversation.

    Without a template, the model can still score text prompts.
    """
    if not chat.has_template:
        return ()
    try:
        (outcome,) = chat.encode_chats([_CONVERSATION], open_turn=False)
    except BadChatTemplate as problem:
        return problem.problems
    return outcome.problems if isinstance(outcome, BadChatTemplate) else ()


def _check_recording(spec: PPOJobSpec, found: Preflight) -> None:
    replay = spec.rollout.replay
    if replay is None:
        return
    if (Path(replay) / CHECKPOINTS_FOLDER / JOURNAL_NAME).is_file():
        with found.refusals():
            read_recording(Path(replay), takes_given=spec.algorithm.guidance is not None)
    else:
        where, code = "spec.rollout.replay", ReasonCode.UNREADABLE
        why, allowed = "there is no run in it", "the run folder of a job that has done a step"
        found.add([Problem(where, shown(replay), why, allowed, code)])


def _check_rewards(spec: PPOJobSpec, found: Preflight) -> None:
    """Load the reward functions once, in a process like those that will call them."""
    if not spec.rewards:
        return  # built-in scorers
    judge = None if spec.judge is None else Judge("http://127.0.0.1/v1", spec.judge.path, 0.0)
    with found.refusals():
        variables = variables_of_code("reward")
        ScoringPool(spec.rewards, sandbox=spec.sandbox, variables=variables, judge=judge).close()


def _check_sampler(spec: PPOJobSpec, found: Preflight) -> None:
    """Load the sampling function once, in a process like the one that will call it."""
    if (sampler := spec.prompts.sampler) is None or not spec.steps.trains:
        return
    with found.refusals(), PromptStore() as nothing, RowSampler(sampler, nothing) as child:
        child.open()


def _custom_functions(spec: PPOJobSpec) -> list[str]:
    """Load custom estimators and policy losses once, in a process with PyTorch."""
    wheres = [where for where, role, _ in spec.code_sources if role == "actorRollout"]
    if not wheres or not spec.steps.trains:
        return []
    # -P: files in the working folder must not shadow modules of the child.
    command = [sys.executable, "-P", "-m", "ppojob_trainer.engine.custom_functions"]
    request, allowed = spec.algorithm.model_dump_json().encode(), "a file that can be imported"
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, check=False, timeout=_IMPORT_SECONDS
        )
        found: list[str] = json.loads((done.stdout.splitlines() or [b""])[-1])
    except subprocess.TimeoutExpired:
        return [f"{wheres[0]}: importing it takes longer than {_IMPORT_SECONDS} s; {allowed}"]
    except ValueError:
        last = printable((done.stderr.decode(errors="replace").splitlines() or [""])[-1], 200)
        return [f"{wheres[0]}: importing it ended Python by {done.returncode}: {last}; {allowed}"]
    return found


def _check_tools(spec: PPOJobSpec, found: Preflight) -> RowCalls:
    """Load tools and user simulators once, in the same way; return the calls of the latter."""
    if spec.agent is None or not calls_tools(spec):
        return {}
    elsewhere = [tool.name for tool in retrieved_tools(spec)]
    variables = variables_of_code("tools")
    calls: RowCalls = {}
    with (
        found.refusals(),
        ToolPool(
            spec.agent, sandbox=spec.sandbox, variables=variables, elsewhere=elsewhere
        ) as pool,
    ):
        calls = pool.row_calls
    return calls


def _check_retriever(spec: PPOJobSpec, found: Preflight) -> None:
    """Check the manifest of the index; its files are checked when it is opened."""
    for tool in retrieved_tools(spec):
        assert spec.agent is not None
        assert spec.agent.retriever is not None
        folder = Path(spec.agent.retriever.index)
        with found.refusals("spec.agent.retriever.index: "):
            check_memory(read_manifest(folder), folder)
        with found.refusals(f"spec.agent.tools[{spec.agent.tools.index(tool)}]."):
            passages_a_query(tool.config)
