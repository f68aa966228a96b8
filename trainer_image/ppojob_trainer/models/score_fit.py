"""Whether a reward model and its tokenizer belong together, and how long a text it reads."""

from collections.abc import Iterator

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_trainer.models.problems import ModelReason


def check_score_fit(
    *,
    max_tokens: int | None,
    context_tokens: int | None,
    largest_token_id: int,
    vocabulary: int | None,
) -> Iterator[Problem]:
    """Hold the settings of a reward model against the model.

    Args:
        max_tokens: `spec.rewardModel.maxTokens`.
        context_tokens: that the model was made for; None for no known limit.
        largest_token_id: of its tokenizer.
        vocabulary: rows of its embedding; None where they are not known.
    """
    if max_tokens is not None and context_tokens is not None and max_tokens > context_tokens:
        yield Problem(
            "spec.rewardModel.maxTokens",
            shown(max_tokens),
            f"the reward model was made for {context_tokens}",
            f"at most {context_tokens}, or remove it",
            ReasonCode.OUT_OF_RANGE,
        )
    if vocabulary is not None and largest_token_id >= vocabulary:
        yield Problem(
            "spec.rewardModel.tokenizerPath",
            f"token ids up to {largest_token_id}",
            f"the reward model's embedding has {vocabulary} rows",
            "the tokenizer that the model was made with",
            ModelReason.VOCABULARY,
        )
