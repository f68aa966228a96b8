"""Checks that a tokenizer fits its model: of the policy, a reference, a reward model."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.tokenizer_files import read_tokenizer_files
from ppojob_trainer.models.problems import ModelReason

_SAME: Final = "a model with the policy's tokenizer"


def check_tokenizer_fit(
    chat: ChatTokenizer, vocabulary: int | None, folder: Path, stop_token_ids: Sequence[int]
) -> Iterator[Problem]:
    """Check that a folder's tokenizer fits the model, whose embedding has `vocabulary` rows."""
    where = str(folder / "tokenizer.json")
    yield from _check_vocabulary(where, chat.largest_token_id, vocabulary, "model")
    if not chat.eos_token_ids and not stop_token_ids:
        where = str(folder / "tokenizer_config.json")
        why = "every response would go on to maxResponseTokens"
        ids = "eos_token_id in generation_config.json, or spec.rollout.stopTokenIds"
        allowed = f"eos_token here, {ids}"
        yield Problem(where, "no eos_token", why, allowed, ModelReason.NO_END_TOKEN)
    for position, token in enumerate(stop_token_ids):
        if vocabulary is not None and token >= vocabulary:
            where = f"spec.rollout.stopTokenIds[{position}]"
            why = f"the model's embedding has {vocabulary} rows"
            allowed = f"an integer below {vocabulary}"
            yield Problem(where, shown(token), why, allowed, ModelReason.VOCABULARY)


def check_rows(
    where: str, rows: int | None, policy_rows: int | None, *, is_cut: bool
) -> Iterator[Problem]:
    """Check that a reference's vocabulary has at least the policy's rows, if both are known.

    `where` is the field of its folder. Additional rows are padding. With tensor parallelism
    (`is_cut`) ranks compare their shards of both output layers, whose rows match only if the
    lengths are equal.
    """
    if rows is None or policy_rows is None:
        return
    got = f"an embedding of {rows} rows"
    if rows < policy_rows:
        why = f"the policy may draw any of {policy_rows} tokens"
        yield Problem(where, got, why, _SAME, ModelReason.VOCABULARY)
    elif rows > policy_rows and is_cut:
        why = (
            f"tensor ranks have other tokens of it than of the policy's {policy_rows} rows: not in "
            "this version"
        )
        allowed = "a model of as many rows, or roles.actorRollout.parallelism without tensor"
        yield Problem(where, got, why, allowed, ReasonCode.NOT_IN_THIS_VERSION)


def check_same_tokens(vocabulary: Mapping[str, int], folder: Path) -> Iterator[Problem]:
    """Check that a reference, if it has a tokenizer, has the policy's tokens, by their ids."""
    if not (folder / "tokenizer.json").is_file():
        return
    theirs = read_tokenizer_files(folder, folder, None).tokenizer.get_vocab(with_added_tokens=True)
    known = {token: text for text, token in theirs.items()}
    for text, token in sorted(vocabulary.items(), key=lambda one: one[1]):
        if known.get(token, text) != text:
            got = f"{shown(known[token])} as token {token}"
            why = f"the policy has {shown(text)} there, and a reference reads the policy's tokens"
            where = str(folder / "tokenizer.json")
            yield Problem(where, got, why, _SAME, ModelReason.OTHER_TOKENS)
            return


def check_score_fit(
    *,
    max_tokens: int | None,
    context_tokens: int | None,
    largest_token_id: int,
    vocabulary: int | None,
) -> Iterator[Problem]:
    """Check that the settings of a reward model fit it; None is unknown.

    `max_tokens` is `spec.rewardModel.maxTokens`, `context_tokens` the model's context length,
    `vocabulary` the rows of its embedding.
    """
    if max_tokens is not None and context_tokens is not None and max_tokens > context_tokens:
        why = f"the reward model was made for {context_tokens}"
        allowed = f"at most {context_tokens}, or remove it"
        where = "spec.rewardModel.maxTokens"
        yield Problem(where, shown(max_tokens), why, allowed, ReasonCode.OUT_OF_RANGE)
    where = "spec.rewardModel.tokenizerPath"
    yield from _check_vocabulary(where, largest_token_id, vocabulary, "reward model")


def _check_vocabulary(
    where: str, largest: int, vocabulary: int | None, name: str
) -> Iterator[Problem]:
    if vocabulary is not None and largest >= vocabulary:
        got = f"token ids up to {largest}"
        why = f"the {name}'s embedding has {vocabulary} rows"
        allowed = "the tokenizer that the model was made with"
        yield Problem(where, got, why, allowed, ModelReason.VOCABULARY)
