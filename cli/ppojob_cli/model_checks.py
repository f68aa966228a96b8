"""Whether the models beside the policy can read what it writes: a critic, and a reward model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ppojob_api.problem import Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.rollout import RewardModelSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.folder_checks import ModelReport, check_model_folder
from ppojob_trainer.models.kinds import CRITIC, REWARD
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.tokenizer_fit import check_score_fit

_CONVERSATION = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})


def check_critic(spec: PPOJobSpec, largest_token_id: int | None) -> ModelReport:
    """Judge the critic's folder; nothing is found where it is the policy's, judged by itself."""
    critic = spec.critic
    if critic is None or critic.path is None or critic.path == spec.model.path:
        return ModelReport()
    trusted = spec.model.trust_remote_code
    report = check_model_folder(Path(critic.path), CRITIC, trust_remote_code=trusted)
    unfit = _of_rows(spec, report, largest_token_id)
    return replace(report, errors=[*report.errors, *unfit])


def _of_rows(
    spec: PPOJobSpec, report: ModelReport, largest_token_id: int | None
) -> Iterator[Problem]:
    """Rows that the model cannot read: it gets the policy's tokens, as many as the policy."""
    rows, longest = report.vocabulary, spec.rollout.max_model_tokens
    if rows is not None and largest_token_id is not None and largest_token_id >= rows:
        yield Problem(
            CRITIC.where,
            f"an embedding of {rows} rows",
            f"it reads the policy's token ids, which go up to {largest_token_id}",
            "a model with the policy's tokenizer",
            ModelReason.VOCABULARY,
        )
    if (
        longest is not None
        and report.context_tokens is not None
        and report.context_tokens < longest
    ):
        yield Problem(
            CRITIC.where,
            f"a model made for {report.context_tokens} tokens",
            f"spec.rollout.maxModelTokens is {longest}",
            "a model made for as many, or shorter rows",
            ReasonCode.OUT_OF_RANGE,
        )


def check_reward_model(spec: RewardModelSpec) -> tuple[ModelReport, list[str]]:
    """Judge the reward model's folder and its tokenizer.

    Returns:
        What is to be said of the folder, and what is wrong with the tokenizer.
    """
    report = check_model_folder(Path(spec.path), REWARD, trust_remote_code=False)
    folder = Path(spec.tokenizer_path or spec.path)
    if not folder.is_dir() and folder == Path(spec.path):
        return report, []  # that the folder is missing has been said
    try:
        chat = ChatTokenizer(
            spec.path, folder, spec.chat_template, setting="spec.rewardModel.chatTemplate"
        )
    except ConfigError as problem:
        return report, list(problem.problems)
    with chat:
        return report, [*map(str, _unfit(spec, report, chat)), *_refusals(chat)]


def _unfit(spec: RewardModelSpec, report: ModelReport, chat: ChatTokenizer) -> Iterator[Problem]:
    return check_score_fit(
        max_tokens=spec.max_tokens,
        context_tokens=report.context_tokens,
        largest_token_id=chat.largest_token_id,
        vocabulary=report.vocabulary,
    )


def _refusals(chat: ChatTokenizer) -> list[str]:
    """What the template says of the plainest conversation, where there is a template.

    Without one the model can still score prompts that are text.
    """
    if not chat.has_template:
        return []
    try:
        (outcome,) = chat.encode_chats([_CONVERSATION], open_turn=False)
    except BadChatTemplate as problem:
        return list(problem.problems)
    return list(outcome.problems) if isinstance(outcome, BadChatTemplate) else []
