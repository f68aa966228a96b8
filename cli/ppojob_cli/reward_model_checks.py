"""Whether a reward model can score what the policy writes."""

from collections.abc import Iterator
from pathlib import Path

from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.rollout import RewardModelSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.folder_checks import ModelReport, check_model_folder
from ppojob_trainer.models.kinds import REWARD
from ppojob_trainer.models.score_fit import check_score_fit

_CONVERSATION = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})


def check_reward_model(spec: RewardModelSpec) -> tuple[ModelReport, list[str]]:
    """Judge the reward model's folder and its tokenizer.

    Args:
        spec: resolved.

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
