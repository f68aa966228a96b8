"""Paths: of models, data and code, which whoever runs the job must find."""

import posixpath
from collections.abc import Iterator

from ppojob_api.checks.check import Check, bad_form, conflict, not_yet
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.training import DataFile

DATA_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json")


def _data_files(job: PPOJob) -> Iterator[tuple[str, DataFile]]:
    for kind, files in (("train", job.spec.data.train), ("validation", job.spec.data.validation)):
        for index, file in enumerate(files):
            yield f"spec.data.{kind}[{index}]", file


def data_formats(job: PPOJob) -> Iterator[Problem]:
    """Format auto goes by the ending of the name."""
    for where, file in _data_files(job):
        if file.format == "auto" and not file.path.lower().endswith(DATA_ENDINGS):
            yield bad_form(
                f"{where}.path",
                file.path,
                "format auto knows a file by its ending",
                f"a name that ends in {', '.join(DATA_ENDINGS)}, or format: parquet or jsonl",
            )


def data_duplicates(job: PPOJob) -> Iterator[Problem]:
    """A file given twice counts its rows twice, which nobody means."""
    for kind, files in (("train", job.spec.data.train), ("validation", job.spec.data.validation)):
        first: dict[str, int] = {}
        for index, file in enumerate(files):
            if file.path in first:
                where = f"spec.data.{kind}[{index}].path"
                why = f"it is spec.data.{kind}[{first[file.path]}] already"
                yield Problem(where, shown(file.path), why, "each file once", ReasonCode.DUPLICATE)
            first.setdefault(file.path, index)


def _all_paths(job: PPOJob) -> Iterator[tuple[str, str | None]]:
    """Every path that a pod reads, by its own path in the spec."""
    model, critic, scorer = job.spec.model, job.spec.critic, job.spec.reward_model
    yield "spec.model.path", model.path
    yield "spec.model.tokenizerPath", model.tokenizer_path
    yield "spec.model.chatTemplate", model.chat_template
    if critic is not None:
        yield "spec.critic.path", critic.path
    if scorer is not None:
        yield "spec.rewardModel.path", scorer.path
        yield "spec.rewardModel.tokenizerPath", scorer.tokenizer_path
        yield "spec.rewardModel.chatTemplate", scorer.chat_template
    yield "spec.rollout.replay", job.spec.rollout.replay
    for where, file in _data_files(job):
        yield f"{where}.path", file.path
    for index, reward in enumerate(job.spec.rewards):
        if reward.source is not None:
            yield f"spec.rewards[{index}].source.path", reward.source.path


def remote_paths(job: PPOJob) -> Iterator[Problem]:
    """URLs of object stores are not read yet; only folders and files are."""
    for where, path in _all_paths(job):
        if path is not None and _is_url(path):
            yield not_yet(where, path, "URLs", "a path on this machine or on a volume")


def paths_in_pods(job: PPOJob) -> Iterator[Problem]:
    """A container begins nowhere that an author knows, so a cluster needs whole paths."""
    if job.spec.checkpoint.volume is None:
        return
    for where, path in _all_paths(job):
        if path is not None and not posixpath.isabs(path) and not _is_url(path):
            yield conflict(
                where,
                path,
                "with spec.checkpoint.volume the job is a cluster's, whose pods find no such path",
                "an absolute path, on a volume that spec.pods[].volumes mounts",
            )


def _is_url(path: str) -> bool:
    return "://" in path


_DATA = ("spec.data.train", "spec.data.validation")
_PATHS = (
    "spec.model",
    "spec.critic.path",
    "spec.rewardModel",
    "spec.rollout.replay",
    *_DATA,
    "spec.rewards",
)

PATH_CHECKS = (
    Check(data_formats, _DATA),
    Check(data_duplicates, _DATA),
    Check(remote_paths, _PATHS),
    Check(paths_in_pods, (*_PATHS, "spec.checkpoint.volume")),
)
