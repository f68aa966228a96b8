"""Names shared by operator, pods and command line: resource, labels, objects, limits."""

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

# Roles in names of pods and services, which have no capitals.
ROLE_SLUGS: Final[dict[RoleName, str]] = {
    role: re.sub("[A-Z]", r"-\g<0>", role).lower() for role in get_args(RoleName)
}

# Built-in reward functions; a test compares them with the trainer's table, and the lists below too.
BUILT_IN_SCORERS: Final = (
    *("addition", "code", "countdown", "environment_score", "geometry3k", "gsm8k", "http_score"),
    *("judge", "majority_vote", "math_dapo", "math_reward", "math_verify", "multiply", "search_r1"),
    "search_r1_format",
)

# Built-in samplers.
BUILT_IN_SAMPLERS: Final = ("nearest", "uncertain")

# Values of each row that samplers get besides spec.data.sampler.columns.
SEEN_OF_ROWS: Final = (
    *("data_source", "draws", "last_step", "responses", "mean_score", "last_score", "value"),
)

# Built-in tools.
SEARCH_TOOL: Final = "search"
BASH_TOOL: Final = "bash"
BUILT_IN_TOOLS: Final = (
    BASH_TOOL,
    *("calc_geo3k_reward", "calc_gsm8k_reward", "calculator", "image_zoom_in_tool", "python"),
    SEARCH_TOOL,
)

# Built-in interactions.
BUILT_IN_INTERACTIONS: Final = ("gsm8k",)

# Built-in agents; search_r1 needs the tool.
BUILT_IN_AGENTS: Final = ("react_agent", "search_r1", "single_turn_agent", "tool_agent")

LABEL_JOB: Final = "ppojob.dev/job"
LABEL_ROLE: Final = "ppojob.dev/role"
LABEL_ROW_OF: Final = "ppojob.dev/row-of"
"""The job of a pod in which the commands of one row run (`agent.containers`)."""
ANNOTATION_CONFIG_DIGEST: Final = "ppojob.dev/config-digest"
RESERVED_PREFIX: Final = "ppojob.dev/"

# A StatefulSet writes its name and an 11-character revision hash into a label of 63 characters. Of
# the other 52 the longest role name with its hyphen takes 14.
STATEFUL_SET_NAME_LIMIT: Final = 52
JOB_NAME_LIMIT: Final = STATEFUL_SET_NAME_LIMIT - max(len(slug) + 1 for slug in ROLE_SLUGS.values())
JOB_NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAMESPACE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

WEIGHTS_AGAIN: Final = "consolidated"
"""Prefix of files that hold a model's weights a second time, in Mistral's own format."""

# Client-side apply stores the whole object in an annotation; the limit of annotations is 256 KiB.
MANIFEST_BYTES_LIMIT: Final = 256 * 1024


def workload_name(job: str, role: RoleName) -> str:
    """Name of a role's StatefulSet and of its headless service: `<job>-<role>`."""
    return f"{job}-{ROLE_SLUGS[role]}"


def pod_name(job: str, role: RoleName, index: int) -> str:
    """Name of one pod of a role: `<job>-<role>-<index>`."""
    return f"{workload_name(job, role)}-{index}"


def row_pod_name(job: str, digest: str) -> str:
    """Name of the pod of a row, by 16 hexadecimal digits; the chart's policy knows this form."""
    return f"{job}-row-{digest}"


def row_account_name(job: str) -> str:
    """Name of the ServiceAccount with which tools pods create the pods of rows."""
    return f"{job}-row-containers"


def pod_host(job: str, role: RoleName, index: int) -> str:
    """Host name of one pod inside its namespace: `<pod>.<service>`."""
    return f"{pod_name(job, role, index)}.{workload_name(job, role)}"
