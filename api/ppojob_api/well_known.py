"""Names that the operator, the pods and people agree on: the resource, keys, children, limits."""

import re
from typing import Final, Literal, get_args

GROUP: Final = "ppojob.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "ppojob.dev/v1alpha1"
KIND: Final = "PPOJob"
PLURAL: Final = "ppojobs"
SINGULAR: Final = "ppojob"
SHORT_NAME: Final = "ppo"

RoleName = Literal[
    "controller",
    "actorRollout",
    "rollout",
    "reference",
    "critic",
    "rewardModel",
    "reward",
    "tools",
    "retriever",
    "judge",
]

# As the role is called in names of pods and services, which know no capitals.
ROLE_SLUGS: Final[dict[RoleName, str]] = {
    role: re.sub("[A-Z]", r"-\g<0>", role).lower() for role in get_args(RoleName)
}

# Scorers that a reward may name without a source; the trainer's table is held to this by a test.
BUILT_IN_SCORERS: Final = (
    *("addition", "code", "countdown", "geometry3k", "gsm8k", "http_score", "judge"),
    *("majority_vote", "math_dapo", "math_reward", "math_verify", "multiply", "search_r1"),
    "search_r1_format",
)

# Functions that choose the rows of a step without a source; held to the trainer's table likewise.
BUILT_IN_SAMPLERS: Final = ("nearest", "uncertain")

# What they are told of every row beside spec.data.sampler.columns.
SEEN_OF_ROWS: Final = (
    *("data_source", "draws", "last_step", "responses", "mean_score", "last_score", "value"),
)

# Tools that a model may call without a source; held to the trainer's table in the same way.
SEARCH_TOOL: Final = "search"
BUILT_IN_TOOLS: Final = (
    *("calc_geo3k_reward", "calc_gsm8k_reward", "calculator", "image_zoom_in_tool", "python"),
    SEARCH_TOOL,
)

# Interactions that need no source; held to the trainer's table in the same way.
BUILT_IN_INTERACTIONS: Final = ("gsm8k",)

# Agents that a row may name where the job says nothing of them; of search_r1 it needs the tool.
BUILT_IN_AGENTS: Final = ("react_agent", "search_r1", "single_turn_agent", "tool_agent")

LABEL_JOB: Final = "ppojob.dev/job"
LABEL_ROLE: Final = "ppojob.dev/role"
ANNOTATION_CONFIG_DIGEST: Final = "ppojob.dev/config-digest"
RESERVED_PREFIX: Final = "ppojob.dev/"

# A StatefulSet puts its name and an 11-character revision hash into a label of 63 characters, and
# the longest role name with its hyphen takes 14 of the 52 that are left.
STATEFUL_SET_NAME_LIMIT: Final = 52
JOB_NAME_LIMIT: Final = STATEFUL_SET_NAME_LIMIT - max(len(slug) + 1 for slug in ROLE_SLUGS.values())
JOB_NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAMESPACE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

WEIGHTS_AGAIN: Final = "consolidated"
"""How files of a model's repository begin that hold its weights again, in Mistral's own form."""

# Client-side apply keeps the whole object in an annotation, and annotations end at 256 KiB.
MANIFEST_BYTES_LIMIT: Final = 256 * 1024


def workload_name(job: str, role: RoleName) -> str:
    """Name of a role's StatefulSet and of its headless service: `<job>-<role>`."""
    return f"{job}-{ROLE_SLUGS[role]}"


def pod_name(job: str, role: RoleName, index: int) -> str:
    """Name of one pod of a role: `<job>-<role>-<index>`."""
    return f"{workload_name(job, role)}-{index}"


def pod_host(job: str, role: RoleName, index: int) -> str:
    """Host name of one pod inside its namespace: `<pod>.<service>`."""
    return f"{pod_name(job, role, index)}.{workload_name(job, role)}"
