"""Names: of the job, its labels, claims and reward functions."""

import keyword
import re
from collections.abc import Iterator

from ppojob_api.checks.check import Check, bad_form, conflict
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.well_known import (
    BUILT_IN_SCORERS,
    JOB_NAME_LIMIT,
    JOB_NAME_PATTERN,
    NAMESPACE_PATTERN,
    RESERVED_PREFIX,
)

_CLAIM_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def job_name(job: PPOJob) -> Iterator[Problem]:
    """A job's name begins the names of pods and services, so it follows RFC 1035 and is short."""
    name = job.metadata.name
    if not re.fullmatch(JOB_NAME_PATTERN, name):
        allowed = "a letter, then letters, digits and hyphens, all lower case, no hyphen at the end"
        yield bad_form("metadata.name", name, "it begins the names of pods and services", allowed)
    elif len(name) > JOB_NAME_LIMIT:
        yield Problem(
            "metadata.name",
            f"{len(name)} characters",
            "names of pods and of their revisions end at 63 characters",
            f"at most {JOB_NAME_LIMIT} characters",
            ReasonCode.OUT_OF_RANGE,
        )


def namespace(job: PPOJob) -> Iterator[Problem]:
    """A namespace is an RFC 1123 label."""
    name = job.metadata.namespace
    if not re.fullmatch(NAMESPACE_PATTERN, name):
        allowed = "letters, digits and hyphens, all lower case, no hyphen at either end"
        yield bad_form("metadata.namespace", name, "it is not the name of a namespace", allowed)


def reserved_keys(job: PPOJob) -> Iterator[Problem]:
    """Keys under our own prefix belong to the operator."""
    kinds = (("labels", job.metadata.labels), ("annotations", job.metadata.annotations))
    for kind, items in kinds:
        for key in items:
            if key.startswith(RESERVED_PREFIX):
                yield Problem(
                    f"metadata.{kind}",
                    shown(key),
                    f"keys that begin with {RESERVED_PREFIX} belong to the operator",
                    "a prefix of your own",
                    ReasonCode.FORBIDDEN,
                )


def claim_name(job: PPOJob) -> Iterator[Problem]:
    """A claim is named within the job's own namespace."""
    volume = job.spec.checkpoint.volume
    if volume is not None and not _CLAIM_NAME.fullmatch(volume.claim_name):
        yield bad_form(
            "spec.checkpoint.volume.claimName",
            volume.claim_name,
            "it is not the name of a claim in the job's own namespace",
            "letters, digits, hyphens and dots, all lower case",
        )


def reward_functions(job: PPOJob) -> Iterator[Problem]:
    """A custom function is a Python name, from exactly one source."""
    seen: dict[tuple[str, str | None], int] = {}
    for index, reward in enumerate(job.spec.rewards):
        where = f"spec.rewards[{index}]"
        if not reward.function.isidentifier() or keyword.iskeyword(reward.function):
            allowed = "the name of a Python function"
            yield bad_form(f"{where}.function", reward.function, "it names no function", allowed)
        path = reward.source.path if reward.source else None
        key = (reward.function, path)
        if key in seen:
            why = f"it is the same function as spec.rewards[{seen[key]}]"
            yield Problem(
                f"{where}.function",
                shown(reward.function),
                why,
                "each function once, with the sum of the weights",
                ReasonCode.DUPLICATE,
            )
        seen.setdefault(key, index)


def built_in_scorers(job: PPOJob) -> Iterator[Problem]:
    """A reward without a source names a scorer that is built in."""
    for index, reward in enumerate(job.spec.rewards):
        name = reward.function
        if reward.source is None and name.isidentifier() and name not in BUILT_IN_SCORERS:
            yield Problem(
                f"spec.rewards[{index}].function",
                shown(name),
                "no scorer of this name is built in",
                f"one of {', '.join(BUILT_IN_SCORERS)}, or a source",
                ReasonCode.NOT_ONE_OF,
            )


def reward_sources(job: PPOJob) -> Iterator[Problem]:
    """Exactly one of path and configMap."""
    for index, reward in enumerate(job.spec.rewards):
        source, where = reward.source, f"spec.rewards[{index}].source"
        if source is None:
            continue
        if source.path is not None and source.config_map is not None:
            why = "path and configMap exclude each other"
            yield conflict(where, source.path, why, "exactly one of path and configMap")
        elif source.path is None and source.config_map is None:
            allowed = "exactly one of path and configMap"
            yield Problem(where, ABSENT, "the code has no source", allowed, ReasonCode.REQUIRED)


def loggers(job: PPOJob) -> Iterator[Problem]:
    """Each logger once."""
    for index, logger in enumerate(job.spec.loggers):
        if logger in job.spec.loggers[:index]:
            where = f"spec.loggers[{index}]"
            why = "it is in the list already"
            yield Problem(where, shown(logger), why, "each logger once", ReasonCode.DUPLICATE)


NAME_CHECKS = (
    Check(job_name, ("metadata.name",)),
    Check(namespace, ("metadata.namespace",)),
    Check(reserved_keys, ("metadata.labels", "metadata.annotations")),
    Check(reward_functions, ("spec.rewards",)),
    Check(built_in_scorers, ("spec.rewards",)),
    Check(reward_sources, ("spec.rewards",)),
    Check(claim_name, ("spec.checkpoint.volume",)),
    Check(loggers, ("spec.loggers",)),
)
