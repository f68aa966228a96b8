#!/usr/bin/env python3
"""Stand-in for docker: containers are PID namespaces on the files of this machine, but for /tmp.

It does what PPOJob asks of docker and podman: ps, run, exec and rm. `CONTAINERS` is a folder with a
file for each container, which has the process id of its first process.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(command: str, *given: str) -> None:
    folder = Path(os.environ["CONTAINERS"])
    if command == "ps":
        print("\n".join(one.name for one in folder.iterdir()))
    elif command == "run":
        if "no-such-image" in given:
            sys.exit("Unable to find image 'no-such-image' locally")
        start(folder / given[given.index("--name") + 1], given[given.index("--entrypoint") + 3 :])
    elif command == "exec":
        _, name, *program = given
        pid = (folder / name).read_text()
        entered = ("-t", pid, "-U", "--preserve-credentials", "-p", "-m")
        in_folder = ("sh", "-c", 'cd /tmp && exec "$@"', "sh")
        os.execvp("nsenter", ("nsenter", *entered, *in_folder, *program))
    elif command == "rm" and (file := folder / given[-1]).exists():
        end(file)


def start(file: Path, first: tuple[str, ...]) -> None:
    namespaces = ("unshare", "--map-root-user", "--pid", "--mount-proc", "--fork")
    own = ("sh", "-c", 'mount -t tmpfs none /tmp && exec sh "$@"', "sh", *first)
    null = subprocess.DEVNULL
    parent = subprocess.Popen(
        (*namespaces, *own), stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (child := children.read_text().strip()) or not is_ready(child, first):
        time.sleep(0.01)
    file.write_text(child)


def is_ready(pid: str, program: tuple[str, ...]) -> bool:
    """Whether the process runs its program, in its own /tmp."""
    return Path("/proc", pid, "cmdline").read_text() == "\0".join(("sh", *program, ""))


def end(file: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)
    file.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
