"""Whether a critic's model can judge what the policy writes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ppojob_api.problem import Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.models.folder_checks import ModelReport, check_model_folder
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.problems import ModelReason


def check_critic(spec: PPOJobSpec, largest_token_id: int | None) -> ModelReport:
    """Judge the critic's folder; nothing is found where it is the policy's, which is judged itself.

    Args:
        spec: resolved.
        largest_token_id: of the policy's tokenizer; None where it is not known.
    """
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
