"""Stands for wandb, misbehaving as the file `way` says; logs a line a step to STUB_FOLDER."""

import os
import signal
import time
from pathlib import Path

FOLDER = Path(os.environ["WANDB_STUB_FOLDER"])
LOGGED = FOLDER / "logged"
WAY = (FOLDER / "way").read_text()

if WAY == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


class Settings:
    def __init__(self, **_: object) -> None:
        pass


class Run:
    dir = url = "stub://run"

    @property
    def starting_step(self) -> int:
        return int(LOGGED.read_text().split()[-1]) + 1 if LOGGED.exists() else 0

    def log(self, _: object, *, step: int, commit: bool) -> None:
        assert commit
        if WAY == "hangs_at_3" and step == 3:
            time.sleep(3600)
        with LOGGED.open("a") as file:
            file.write(f"{step}\n")
        if WAY == "dies_at_3" and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(self, *, exit_code: int) -> None:
        (FOLDER / "finished").write_text(str(exit_code))


def login(**_: object) -> bool:
    return True


def init(**_: object) -> Run:
    with (FOLDER / "tried").open("a") as file:
        file.write("x")
    if WAY == "raises":
        key = os.environ["WANDB_API_KEY"]
        raise ConnectionError(f"no https://me:{key}@api.wandb.ai\nand more")
    return Run()


def teardown() -> None:
    pass
