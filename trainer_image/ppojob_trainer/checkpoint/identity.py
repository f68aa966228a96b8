"""Checkpoint identity: whether a checkpoint belongs to this job, and every setting that differs."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from ppojob_api.shape import members_at
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN
from ppojob_api.v1alpha1.policy_loss import LOSSES
from ppojob_trainer.checkpoint.manifest import UNREAD, Manifest, Progress, check_content
from ppojob_trainer.errors import CannotResume, DamagedCheckpoint
from ppojob_trainer.json_value import Json

_ABSENT: Final = "(absent)"
_SHOWN_DIGITS: Final = 12
_SOURCES: Final = {
    "spec.model.tokenizerPath": {"spec.model.path"},
    "spec.data.seed": {"spec.seed"},
    "spec.algorithm.miniBatchPrompts": {"spec.algorithm.promptsPerStep"},
    "spec.algorithm.dynamicSampling.promptsPerRound": {"spec.algorithm.promptsPerStep"},
    "spec.algorithm.supervised.rowsPerStep": {"spec.algorithm.promptsPerStep"},
    **{
        f"spec.algorithm.{to_camel(name)}": {"spec.algorithm.type"}
        for name in (*ESTIMATORS, *GIVEN)
    },
    **{
        f"spec.algorithm.policyLoss.{to_camel(name)}": {"spec.algorithm.policyLoss.type"}
        for name in LOSSES
    },
    "spec.algorithm.lossScaleTokens": {"spec.algorithm.lossAggregation"},
    "spec.algorithm.kl.estimator": {"spec.algorithm.kl.in"},
    "spec.rollout.maxModelTokens": {"spec.data.maxPromptTokens", "spec.data.maxResponseTokens"},
    "spec.data.maxTeacherPromptTokens": {
        "spec.data.teacherPromptKey",
        "spec.data.maxPromptTokens",
        "spec.data.maxResponseTokens",
        "spec.algorithm.distillation.reprompt",
    },
    "spec.critic": {"spec.algorithm.type"},
    "spec.critic.path": {"spec.model.path"},
    "spec.critic.epochs": {"spec.algorithm.epochs"},
    "spec.critic.miniBatchPrompts": {
        "spec.algorithm.miniBatchPrompts",
        "spec.algorithm.promptsPerStep",
    },
    "spec.rewardModel.tokenizerPath": {"spec.rewardModel.path"},
}
"""Fields with derived defaults: a change is reported for the fields that they follow from."""

Difference = tuple[str, str, str]
"""Path, old value and new value as JSON."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Settings that identify the checkpoints of a job."""

    job_uid: str
    # canonical JSON of the settings that decide the trajectory: an object `spec`, which must be
    # equal to resume, and an object `layout`, which may differ
    config: bytes
    # path -> SHA-256 of reward function files, which may differ too: users often fix one before
    # they resume. Stored as the object `files` of the configuration.
    files: Mapping[str, str] = field(default_factory=dict)
    # fingerprints of the base models of the checkpoint's adapters, by the fields of their folders;
    # empty where checkpoints hold all weights
    bases: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> bytes:
        """Return the bytes that a checkpoint stores."""
        whole = json.loads(self.config) | ({"files": dict(self.files)} if self.files else {})
        if self.bases:
            whole["bases"] = dict(self.bases)
        return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def check(owner: Identity, found: Manifest, folder: Path) -> None:
    """Refuse a checkpoint of another job or other settings by CannotResume, a line for each."""
    if found.job_uid != owner.job_uid:
        raise CannotResume(
            f"{folder}: got uid {found.job_uid}: this job is {owner.job_uid}; "
            "another folder, or resume the job that made it"
        )
    theirs = settings_of(found, folder)
    changes = changed_settings(theirs.get("spec"), json.loads(owner.config).get("spec"))
    if changes:
        raise CannotResume(
            f"{where}: got {new}: checkpoint {folder.name} was made with {old}; "
            "the old value, or a new run in another folder (spec.checkpoint.branch: with this "
            "checkpoint)"
            for where, old, new in changes
        )
    check_bases(theirs, owner.bases, folder)


def check_bases(theirs: Mapping[str, Json], bases: Mapping[str, str], folder: Path) -> None:
    """Refuse adapters of other base models than the fingerprints `bases` by CannotResume."""
    known = theirs.get("bases")
    differing = [
        (where, base, other)
        for where, base in bases.items()
        if isinstance(known, dict) and isinstance(other := known.get(where), str) and other != base
    ]
    if differing:
        raise CannotResume(
            f"{where}: got weights {base[:_SHOWN_DIGITS]}: the adapters of checkpoint "
            f"{folder.name} were trained on {other[:_SHOWN_DIGITS]}; the same model, or a new run "
            "in another folder"
            for where, base, other in differing
        )


def edited(known: Mapping[str, Json], now: Mapping[str, str]) -> list[str]:
    """Return the paths of files whose known digest has changed."""
    return [path for path, digest in now.items() if known.get(path, digest) != digest]


def settings_of(found: Manifest, folder: Path) -> dict[str, Any]:
    """Return the settings of a checkpoint; raises DamagedCheckpoint if they are damaged."""
    entry = next((file for file in found.files if file.sha256 == found.config_sha256), None)
    if entry is None:
        raise DamagedCheckpoint(
            f"{folder.name}/manifest.json", "it lists no configuration: made by no known version"
        )
    check_content(folder, entry)
    settings: dict[str, Any] = json.loads((folder / entry.path).read_bytes())
    return settings


def changed_settings(old: Json, new: Json) -> list[Difference]:
    """Return the settings in which two runs differ, without derived ones."""
    found = list(differences(old, new, "spec"))
    paths = {where for where, _, _ in found}
    return [
        difference
        for difference in found
        if not any(
            f"{difference[0]}.".startswith(f"{derived}.") and sources & paths
            for derived, sources in _SOURCES.items()
        )
    ]


def differences(old: Json, new: Json, where: str) -> Iterator[Difference]:
    """Yield the leaves in which two JSON documents differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{where}.{key}"
            if key in old and key in new:
                yield from differences(old[key], new[key], inner)
            # A field that an older version did not have gets its default there.
            elif any(differences(_default(inner), old.get(key, new.get(key)), inner)):
                yield inner, _text(old, key), _text(new, key)
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
        return
    left_text, right_text = json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True)
    if left_text != right_text:
        yield where, left_text, right_text


def _default(where: str) -> Json:
    words = re.findall(r"[^.\[\]]+", where)
    *above, name = (int(word) if word.isdigit() else word for word in words)
    member = members_at(tuple(above)).get(str(name))
    return None if member is None else member.default


def _text(document: dict[str, Json], key: str) -> str:
    return json.dumps(document[key], sort_keys=True) if key in document else _ABSENT


def changed_data(spec: DataSpec, then: Progress, digests: Mapping[str, str]) -> list[str]:
    """Return a line for each field of spec.data whose rows are not those of a run's checkpoint."""
    cursors = {"train": then.data, "demonstrations": then.demonstrations}
    files = {"train": spec.train, "demonstrations": spec.demonstrations}
    return [
        f"spec.data.{name}: got {', '.join(one.path for one in files[name])} with digest "
        f"{now[:_SHOWN_DIGITS]}: the run began with {old.sha256[:_SHOWN_DIGITS]}; files and "
        "tokenizer as they were, or a new run: another --output, or on a cluster another name"
        for name, now in digests.items()
        if (old := cursors[name]) is not None and old != UNREAD and old.sha256 != now
    ]
