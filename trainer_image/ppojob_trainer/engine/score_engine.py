"""ScoreEngine: what a reward model thinks of responses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.value_head import ValueHead
from ppojob_trainer.errors import ConfigError, NonFiniteReward
from ppojob_trainer.models.folder_checks import context_tokens
from ppojob_trainer.models.tokenizer_fit import check_score_fit
from ppojob_trainer.parallel.collectives import refused_together
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be scored.

    Attributes:
        prompt: chat messages, or text that the policy got as it is.
        response: text of the policy.
    """

    prompt: str | Messages
    response: str


class ScoreEngine:
    """Scores texts by a sequence classifier with one label.

    The same answers, weights and number of threads give the same bits.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        chat: ChatTokenizer,
        training: TrainingSpec,
        world: World | None = None,
        *,
        max_tokens: int | None = None,
    ) -> None:
        """Take over a model.

        Args:
            model: from `load_reward_model`; its attention becomes the packed one. It computes in
                the dtype of its weights.
            chat: the reward model's own tokenizer and template.
            training: `micro_batch_tokens`, the tokens of a forward pass.
            world: the ranks that score together; None for this one alone.
            max_tokens: longer texts lose their beginning; None for what the model was made for.

        Raises:
            ConfigError: if `max_tokens` is more than the model was made for, or the tokenizer knows
                tokens that the model does not.
        """
        context = context_tokens(model.config.to_dict())
        unfit = check_score_fit(
            max_tokens=max_tokens,
            context_tokens=context,
            largest_token_id=chat.largest_token_id,
            vocabulary=model.config.vocab_size,
        )
        if problems := list(map(str, unfit)):
            raise ConfigError(problems)
        self._chat = chat
        self._max_tokens = max_tokens or context
        self._pad = model.config.pad_token_id
        plain = training.model_copy(update={"autocast": "none"})
        self._world = world or World.alone(model.device)
        self._engine = ForwardEngine(model, ValueHead(), plain, self._world)

    def scores(self, answers: Sequence[Answer]) -> list[float]:
        """Score every answer; all ranks do so together, each its own.

        A score is the classifier's logit at the last token of the conversation, whose last message
        is the response, in the reward model's own template; a prompt that is text is followed by
        the response as it is. Tokens of padding at the end are not the last one, as in
        transformers, also where they are the template's end tokens.

        Raises:
            ConfigError: the template refuses a conversation, or a text has no token.
            JobFailed: so it is on another rank, or the template's process is killed over and over.
            NonFiniteReward: a score is NaN or infinite.
        """
        with refused_together(self._world):
            texts = [self._trimmed(number, ids) for number, ids in enumerate(self._encode(answers))]
        (values,) = self._engine.predict(_as_prompts(texts))
        for number in (~values.isfinite()).nonzero()[:, 0].tolist():
            raise NonFiniteReward(f"rewardModel: answer {number}", values[number].item())
        scores: list[float] = values.tolist()
        return scores

    def _encode(self, answers: Sequence[Answer]) -> list[list[int]]:
        """Token ids of each conversation."""
        conversations = [
            [*answer.prompt, {"role": "assistant", "content": answer.response}]
            for answer in answers
            if not isinstance(answer.prompt, str)
        ]
        of_chats = iter(
            self._chat.encode_chats(conversations, open_turn=False) if conversations else []
        )
        return [
            self._chat.encode(answer.prompt + answer.response)
            if isinstance(answer.prompt, str)
            else _ids_of(next(of_chats))
            for answer in answers
        ]

    def _trimmed(self, number: int, ids: list[int]) -> list[int]:
        """The last tokens of a text, up to the one that is scored."""
        kept = ids if self._max_tokens is None else ids[-self._max_tokens :]
        if not kept:
            raise ConfigError(
                f"rewardModel: answer {number}: got no token: prompt and response are empty; "
                "a prompt that is not empty"
            )
        end = len(kept)
        while end > 1 and kept[end - 1] == self._pad:
            end -= 1
        return kept[:end]


def _ids_of(outcome: list[int] | BadChatTemplate) -> list[int]:
    if isinstance(outcome, BadChatTemplate):
        raise outcome
    return outcome


def _as_prompts(texts: Sequence[list[int]]) -> Experience:
    """Rows whose prompts are the texts, each with one response token.

    That token is never read: its value is the one of the state before it, which is the whole text.
    """
    count = len(texts)
    return Experience(
        prompts=[torch.tensor(ids, dtype=torch.int64) for ids in texts],
        row_groups=torch.arange(count),
        response_tokens=torch.zeros(count, dtype=torch.int64),
        lengths=torch.ones(count, dtype=torch.int64),
        mask=torch.ones(count, dtype=torch.bool),
        rollout_logprobs=torch.zeros(count),
    )
