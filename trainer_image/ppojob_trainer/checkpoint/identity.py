"""Whether a commit belongs to this job: the one item that differs, with both values."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_trainer.checkpoint.files import check_content
from ppojob_trainer.checkpoint.manifest import Manifest
from ppojob_trainer.errors import CannotResume, DamagedCommit

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_ABSENT: Final = "(absent)"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who owns the commits of a folder.

    Attributes:
        job_uid: identity of the job.
        config: canonical JSON of the settings that decide the trajectory: an object `spec`, in
            which commits must agree, and an object `layout`, in which they may not.
    """

    job_uid: str
    config: bytes


def check(owner: Identity, found: Manifest, folder: Path) -> None:
    """Refuse a commit of another job or of other settings.

    Args:
        owner: this job.
        found: the commit's manifest.
        folder: the commit's folder, which holds its configuration.

    Raises:
        CannotResume: names the one item that differs.
        DamagedCommit: the commit's own configuration cannot be read.
    """
    if found.job_uid != owner.job_uid:
        raise CannotResume(
            f"{folder}: got uid {found.job_uid}: this job is {owner.job_uid}; "
            "name another folder, or go on with the job that made it"
        )
    theirs = settings_of(found, folder)
    difference = first_difference(theirs.get("spec"), json.loads(owner.config).get("spec"), "spec")
    if difference is None:
        return
    where, old, new = difference
    raise CannotResume(
        f"{where}: got {new}: commit {folder.name} was made with {old}; "
        "go on with the old value, or begin a run of its own in another folder"
    )


def layout_change(owner: Identity, found: Manifest, folder: Path) -> str | None:
    """In what the ranks and threads of this job differ from those that wrote a commit.

    Args:
        owner: this job.
        found: the commit's manifest.
        folder: the commit's folder.

    Returns:
        The first setting, with both values; None where the layout is the same.
    """
    theirs = settings_of(found, folder)
    ours = json.loads(owner.config)
    difference = first_difference(theirs.get("layout"), ours.get("layout"), "spec")
    return None if difference is None else "{}: {} -> {}".format(*difference)


def settings_of(found: Manifest, folder: Path) -> dict[str, Json]:
    """The settings that a commit was made with: what `Identity.config` was then.

    Args:
        found: the commit's manifest.
        folder: the commit's folder.

    Raises:
        DamagedCommit: they are absent, or not what the manifest says.
    """
    entry = next((file for file in found.files if file.sha256 == found.config_sha256), None)
    if entry is None:
        raise DamagedCommit(
            f"{folder.name}/manifest.json", "it lists no configuration: made by no known version"
        )
    check_content(folder, entry)
    settings: dict[str, Json] = json.loads((folder / entry.path).read_bytes())
    return settings


def first_difference(old: Json, new: Json, where: str) -> tuple[str, str, str] | None:
    """The first leaf in which two JSON documents differ, in the order of the keys.

    Args:
        old: one document.
        new: the other.
        where: path of both (``spec.algorithm``).

    Returns:
        Path, old value and new value as JSON; None where they are equal.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{where}.{key}" if where else key
            if key not in old or key not in new:
                return inner, _text(old, key), _text(new, key)
            if difference := first_difference(old[key], new[key], inner):
                return difference
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            if difference := first_difference(left, right, f"{where}[{index}]"):
                return difference
        return None
    left_text, right_text = json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True)
    return None if left_text == right_text else (where, left_text, right_text)


def _text(document: dict[str, Json], key: str) -> str:
    return json.dumps(document[key], sort_keys=True) if key in document else _ABSENT
