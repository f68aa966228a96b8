"""Names and files: of the job, its labels, data and reward functions."""

import keyword
import re
from collections.abc import Iterator

from ppojob_api.checks.check import Check
from ppojob_api.problem import Problem, ReasonCode, repeated, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.well_known import NAMESPACE_PATTERN, RESERVED_PREFIX

DATA_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json")


def namespace(job: PPOJob) -> Iterator[Problem]:
    """A namespace is an RFC 1123 label."""
    name = job.metadata.namespace
    if not re.fullmatch(NAMESPACE_PATTERN, name):
        why = "it is not the name of a namespace"
        allowed = "letters, digits and hyphens, all lower case, no hyphen at either end"
        yield Problem("metadata.namespace", shown(name), why, allowed, ReasonCode.BAD_FORM)


def reserved_keys(job: PPOJob) -> Iterator[Problem]:
    """Keys under our own prefix belong to the operator."""
    kinds = (("labels", job.metadata.labels), ("annotations", job.metadata.annotations))
    for kind, items in kinds:
        for key in items:
            if key.startswith(RESERVED_PREFIX):
                why = f"keys that begin with {RESERVED_PREFIX} belong to the operator"
                allowed = "a prefix of your own"
                where = f"metadata.{kind}"
                yield Problem(where, shown(key), why, allowed, ReasonCode.FORBIDDEN)


def reward_functions(job: PPOJob) -> Iterator[Problem]:
    """A function has a Python name, and is given once."""
    rewards = job.spec.rewards
    for index, reward in enumerate(rewards):
        if not reward.function.isidentifier() or keyword.iskeyword(reward.function):
            where, got = f"spec.rewards[{index}].function", shown(reward.function)
            allowed = "the name of a Python function"
            yield Problem(where, got, "it names no function", allowed, ReasonCode.BAD_FORM)
    keys = [(one.function, one.source and one.source.path) for one in rewards]
    allowed = "each function once, with the sum of the weights"
    yield from repeated("spec.rewards", "function", [k[0] for k in keys], keys, allowed)


def data_files(job: PPOJob) -> Iterator[Problem]:
    """Format auto goes by the ending of a name; a file given twice would count its rows twice."""
    for kind, files in (("train", job.spec.data.train), ("validation", job.spec.data.validation)):
        where = f"spec.data.{kind}"
        for index, file in enumerate(files):
            if file.format == "auto" and not file.path.lower().endswith(DATA_ENDINGS):
                yield Problem(
                    f"{where}[{index}].path",
                    shown(file.path),
                    "format auto knows a file by its ending",
                    f"a name that ends in {', '.join(DATA_ENDINGS)}, or format: parquet or jsonl",
                    ReasonCode.BAD_FORM,
                )
        paths = [file.path for file in files]
        yield from repeated(where, "path", paths, paths, "each file once")


NAME_CHECKS = (
    Check(namespace, ("metadata.namespace",)),
    Check(reserved_keys, ("metadata.labels", "metadata.annotations")),
    Check(reward_functions, ("spec.rewards",)),
    Check(data_files, ("spec.data.train", "spec.data.validation")),
)
