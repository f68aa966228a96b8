"""What a process finds that is a rank: all that must not tell a forked one from another.

python -m rank_facts SERVER    its ranks run the program in the variable PPOJOB_PROGRAM
python -m rank_facts rank      runs it here, as in a rank that is started by itself
"""

import os
import sys

from ppojob_api.contract import ENV_DIE_WITH_PARENT
from ppojob_trainer.heartbeat_pipe import die_with_parent

FACTS = """
import ctypes, gc, json, os, resource, signal, sys, tempfile, threading
import torch
status = dict(
    line.rstrip().split(":", 1) for line in open("/proc/self/status")
    if line.startswith(("SigBlk", "SigIgn", "Umask"))
)
opened = sorted(
    (int(name), os.readlink(f"/proc/self/fd/{name}"))
    for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
)
threads = torch.get_num_threads
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # as `open_role_world` does
found = [threads(), torch.get_num_interop_threads(), torch.__config__.parallel_info()]
torch.ones(8, 8) @ torch.ones(8, 8)
gomp = ctypes.CDLL("libgomp.so.1")
found.append(gomp.omp_get_max_threads())
other = threading.Thread(target=lambda: found.append((torch.ones(9).exp().sum().item(), threads())))
other.start()
other.join()
print(json.dumps({
    "status": status,
    "group": os.getpgrp(),
    "session": os.getsid(0),
    "folder": os.getcwd(),
    "path": sys.path,
    "environment": dict(os.environ),
    "C's environment": os.popen("env").read().splitlines(),
    "scratch": tempfile.gettempdir(),
    "input": os.fstat(0).st_rdev,
    "opened": [number for number, _ in opened],
    "threads": found,
    "processor": torch.backends.cpu.get_cpu_capability(),
    "nice": os.nice(0),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "collection": gc.get_threshold(),
    "command": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)),
}))
"""

if __name__ == "__main__":
    if sys.argv[1:] != ["rank"]:
        from ppojob_trainer.fork_server import serve

        die_with_parent(int(os.environ[ENV_DIE_WITH_PARENT]))
        command = serve(sys.argv[1])
    exec(os.environ["PPOJOB_PROGRAM"])
