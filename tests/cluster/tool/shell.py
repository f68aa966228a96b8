"""Other programs, called so that a failure is one line for a person; and progress with seconds."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class ClusterError(Exception):
    """One line: what is wrong with this machine or this input, and what to do about it."""


def call(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> str:
    """Run a program to its end; answers what it printed.

    Where it fails, a ClusterError ends with the last line of what it wrote. `log` takes all of it,
    where that may be much.
    """
    done = subprocess.run(
        argv, env=env, input="", capture_output=True, text=True, errors="replace", check=False
    )
    if log:
        log.write_text(done.stdout + done.stderr)
    if done.returncode:
        words = " ".join(str(word) for word in argv)
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing was written"]
        where = f" (all of it: {log})" if log else ""
        raise ClusterError(f"`{words}` ended with {done.returncode}: {last[0]}{where}")
    return done.stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    print(f"{what} ... ", end="", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr, flush=True)
        raise
    print(f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
