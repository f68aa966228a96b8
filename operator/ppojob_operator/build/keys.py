"""The Secrets that hold the CURVE keys of a job: one a role, mounted there alone. Pure.

The controller's Secret holds the pairs of all roles, of which its pod mounts only its own. So one
write decides all keys at once, and the other Secrets can be made from it at any later time.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.build.metadata import manifest
from ppojob_operator.state import Job, Manifest

SECRET_FILE: Final = "role.key"
PUBLIC_FILE: Final = "public.json"
"""Names of the files that a pod of a role mounts; docs/contract.md."""

_PAIRS: Final = "pairs.json"

KeyPairs = Mapping[RoleName, tuple[str, str]]
"""Role -> public and secret key, each 40 letters of Z85."""


def secret_template(job: Job, role: RoleName) -> dict[str, Any]:
    """The Secret of a role without its content, which only `execute` knows."""
    name = workload_name(job.name, role)
    return manifest("Secret", job, name, role, type="Opaque", immutable=True)


def secret(template: Manifest, role: RoleName, pairs: KeyPairs) -> dict[str, Any]:
    """The Secret of a role."""
    public = {name: pair[0] for name, pair in pairs.items()}
    files = {SECRET_FILE: pairs[role][1], PUBLIC_FILE: json.dumps(public, sort_keys=True)}
    if role == "controller":
        files[_PAIRS] = json.dumps({name: list(pair) for name, pair in pairs.items()})
    data = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
    return {**template, "data": data}


def read_pairs(controllers: Manifest) -> KeyPairs:
    """The pairs of all roles, from the controller's Secret.

    Raises:
        ValueError: it does not hold them.
    """
    try:
        pairs = json.loads(base64.b64decode(controllers["data"][_PAIRS]))
        return {role: (str(public), str(private)) for role, (public, private) in pairs.items()}
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the controller's Secret holds no {_PAIRS}") from problem
