"""Several ranks on one GPU, for machines that have no more.

NCCL refuses two ranks of one host that have the same GPU. Here each says that it is a host of its
own, so that they speak over sockets, and the GPU computes for one process after the other. What
ranks do is the same then; how fast, and what NVLink carries, is not.
"""

import os
from pathlib import Path

import torch

_AS_HOSTS = "import os\nos.environ['NCCL_HOSTID'] = str(os.getpid())\n"


def become_a_host() -> None:
    """Let this process, which has not spoken by NCCL yet, have a GPU that others have too."""
    os.environ |= {"NCCL_HOSTID": str(os.getpid()), "NCCL_SOCKET_IFNAME": "lo"}


def shared_by_pods(folder: Path, pods: int) -> dict[str, str]:
    """Variables of `ppojob run`: every process is a host, and so many pods have the first GPU.

    CUDA takes any beginning of a GPU's name, so it has a name for each pod.
    """
    (folder / "sitecustomize.py").write_text(_AS_HOSTS)
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    names = [name[: len(name) - shorter] for shorter in range(pods)]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"CUDA_VISIBLE_DEVICES": ",".join(names), "NCCL_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
