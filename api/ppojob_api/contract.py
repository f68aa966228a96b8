"""The container contract: environment variables, ports and exit codes (docs/contract.md).

The operator on a cluster, or the runner on one machine, sets these variables; arguments and code
contain no absolute path, port or host.
"""

ENV_CONFIG = "PPOJOB_CONFIG"
"""File: the resolved run configuration, JSON."""
ENV_ROLE = "PPOJOB_ROLE"
"""Role of the pod: `controller`, `actorRollout`, `reward`, ..."""
ENV_POD_INDEX = "PPOJOB_POD_INDEX"
"""Index of the pod within its role, from 0."""
ENV_POD_ADDRESS = "PPOJOB_POD_ADDRESS"
"""IP address that the pod's servers bind."""
ENV_KEYS = "PPOJOB_KEYS"
"""Folder with the role's key pair and the public keys of all roles."""
ENV_RUN_FOLDER = "PPOJOB_RUN_FOLDER"
"""Folder of the run: metrics, checkpoints, rollouts, export."""
ENV_SCRATCH = "PPOJOB_SCRATCH"
"""Writable folder of the pod; its content may be deleted with the pod."""
ENV_ADDRESS_BOOK = "PPOJOB_ADDRESS_BOOK"
"""File: JSON of pod name -> IP address; absent where names resolve by DNS."""
ENV_SERVICE_ACCOUNT = "PPOJOB_SERVICE_ACCOUNT"
"""Folder with the token of the pod's ServiceAccount (`token`) and the API server's CA (`ca.crt`).
On a cluster the controller has it, which writes the status of its PPOJob, and tools pods with
`agent.containers`, which create the pods of rows."""
ENV_API_HOST = "KUBERNETES_SERVICE_HOST"
"""Host of the API server; the kubelet sets it, and the port below, in every pod."""
ENV_API_PORT = "KUBERNETES_SERVICE_PORT"
ENV_CONTAINER_COMMAND = "PPOJOB_CONTAINER_COMMAND"
"""Program that starts containers of rows on one machine, and its first arguments; absent: docker or
podman."""
ENV_REWARD_VARIABLES = "PPOJOB_REWARD_VARIABLES"
"""Names, separated by spaces, of the variables of the reward pods that reward functions see."""
ENV_TOOL_VARIABLES = "PPOJOB_TOOL_VARIABLES"
"""The same of the tools pods, for tools."""
ENV_JUDGE_URL = "PPOJOB_JUDGE_URL"
"""For reward functions of a job with `spec.judge`: base URL of its model, up to `/v1`."""
ENV_JUDGE_MODEL = "PPOJOB_JUDGE_MODEL"
"""The name of that model, which is its folder."""
VARIABLES_OF_CODE = {"reward": ENV_REWARD_VARIABLES, "tools": ENV_TOOL_VARIABLES}
"""By the roles that run user code."""
ENV_DIE_WITH_PARENT = "PPOJOB_DIE_WITH_PARENT"
"""Process id of the parent, with which the process must end: the runner without a kubelet, or the
supervisor for its children."""
ENV_FORK_SERVER = "PPOJOB_FORK_SERVER"
"""Folder of the socket of a server that forks ranks on CPUs; absent on a cluster, where ranks are
started one by one."""

ENV_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""The GPUs of a process, by index or UUID; CUDA counts them from 0 in this order."""

ENV_RANK = "PPOJOB_RANK"
"""Rank within the role's world; set by the pod's supervisor, as are the three below."""
ENV_LOCAL_RANK = "PPOJOB_LOCAL_RANK"
ENV_ATTEMPT = "PPOJOB_ATTEMPT"
ENV_HEARTBEAT = "PPOJOB_HEARTBEAT"
"""File descriptor of the pipe for heartbeats to the supervisor."""

# Below the range of ephemeral ports on Linux (32768 and up), so a port is never taken by chance.
PORT_SUPERVISOR = 7400
PORT_STORE = 7401
"""Rank 0 of a role: torch store of its world and channels, protected only by a NetworkPolicy."""
PORT_HEALTH = 7403
"""Supervisor: probes, state and its ranks' metrics over HTTP; open to all, holds no secret."""
PORT_METRICS = 7404
"""Controller: the steps' metrics over HTTP, for Prometheus; open to all, holds no secret."""
PORT_JUDGE = 7405
"""Judge: its model over HTTP, with OpenAI's API, protected only by a NetworkPolicy."""
PORT_FIRST_RANK = 7420
"""A rank serves on this port plus its local rank."""

EXIT_DONE = 0
EXIT_INVALID = 2
EXIT_FAILED = 3
EXIT_INTERRUPTED = 130

CODE_FOLDER = "/ppojob/code"
"""Where the ConfigMaps with user code are mounted, a folder each."""

SUPERVISE_COMMAND = ("python", "-m", "ppojob_trainer", "supervise")
"""Command of every container."""


def source_field(file: str) -> str:
    """The field that says where a file is, by its place in a pod."""
    return "source.configMap" if file.startswith(f"{CODE_FOLDER}/") else "source.path"
