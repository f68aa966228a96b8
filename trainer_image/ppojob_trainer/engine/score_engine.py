"""ScoreEngine: scores of responses by a reward model."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.data.chat import ChatTokenizer, up_to_padding
from ppojob_trainer.data.media.images import unpacked
from ppojob_trainer.data.template_renderer import Messages, accepted
from ppojob_trainer.engine.forward_engine import ForwardEngine, as_prompts
from ppojob_trainer.engine.head import ValueHead
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.models.folder_checks import context_tokens
from ppojob_trainer.models.tokenizer_fit import check_score_fit
from ppojob_trainer.parallel.collectives import gather_within, raise_together
from ppojob_trainer.parallel.world import World


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the policy to score."""

    prompt: str | Messages  # text without a chat template
    response: str
    images: bytes = b""  # those of the prompt, as by `images.packed`; empty without any


class ScoreEngine:
    """Scores texts by a sequence classifier with one label, deterministically."""

    def __init__(
        self,
        model: PreTrainedModel,
        chat: ChatTokenizer,
        training: TrainingSpec,
        world: World | None = None,
        *,
        max_tokens: int | None = None,
    ) -> None:
        """Take over a reward model, with its own tokenizer and chat template, if they fit.

        It computes in the dtype of its weights. Texts longer than `max_tokens` (None: the model's
        context length) lose their beginning, those with images what follows the last one.
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
        """Score this rank's answers; a collective of all ranks.

        A score is the classifier's logit at the last token of the conversation in the reward
        model's template; a prompt that is text is followed by the response. Padding tokens at the
        end are skipped, as in transformers, also if they are the template's end tokens. Raises
        ConfigError if the template refuses a conversation or a text has no token, JobFailed if
        another rank does, RewardFailed.
        """
        with raise_together(self._world):
            given = zip(answers, self._encode(answers), strict=True)
            texts = [self._trimmed(number, *one) for number, one in enumerate(given)]
        shared, mine = gather_within(self._world, texts)
        rows = as_prompts([ids for ids, _ in shared], [files for _, files in shared])
        values = self._engine.predict(rows)[0][mine]
        for number in (~values.isfinite()).nonzero()[:, 0].tolist():
            got = f"got {values[number].item()}: a reward must be a finite number"
            raise RewardFailed(f"rewardModel: answer {number}", got)
        scores: list[float] = values.tolist()
        return scores

    def _encode(self, answers: Sequence[Answer]) -> list[list[int]]:
        conversations = [
            [*answer.prompt, {"role": "assistant", "content": answer.response}]
            for answer in answers
            if not isinstance(answer.prompt, str)
        ]
        outcomes = self._chat.encode_chats(conversations, open_turn=False) if conversations else []
        of_chats = iter(accepted(outcomes))
        return [
            self._chat.encode(answer.prompt + answer.response)
            if isinstance(answer.prompt, str)
            else next(of_chats)
            for answer in answers
        ]

    def _trimmed(self, number: int, answer: Answer, ids: list[int]) -> tuple[list[int], bytes]:
        (ids, kept), limit = self._with_images(number, answer, ids), self._max_tokens
        if limit is not None and len(ids) > limit:
            if kept >= limit:
                raise ConfigError(
                    f"rewardModel: answer {number}: got {kept} tokens up to the end of its "
                    f"images: no other of {limit} is left; smaller images "
                    "(spec.data.maxImagePixels), or a larger spec.rewardModel.maxTokens"
                )
            ids = ids[:kept] + ids[kept - limit :]
        if not ids:
            raise ConfigError(
                f"rewardModel: answer {number}: got no token: prompt and response are empty; "
                "a prompt that is not empty"
            )
        return up_to_padding(ids, self._pad), answer.images

    def _with_images(self, number: int, answer: Answer, ids: list[int]) -> tuple[list[int], int]:
        """Expand the placeholders of the prompt; such tokens in a response are text.

        Also returns how many tokens there are up to the end of the last image.
        """
        form, count = self._chat.images, len(unpacked(answer.images))
        if form is None or not count:
            return ids, 0
        places = [place for place, id_ in enumerate(ids) if id_ == form.token][:count]
        if len(places) < count:
            raise ConfigError(
                f"rewardModel: answer {number}: got {len(places)} tokens {form.token} for {count} "
                "images: its chat template does not show them; spec.rewardModel.chatTemplate"
            )
        end = places[-1] + 1
        seen = form.expanded(ids[:end], answer.images)
        return seen + ids[end:], len(seen)
