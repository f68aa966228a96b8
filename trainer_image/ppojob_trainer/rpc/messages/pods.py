"""Messages of supervisors."""

import msgspec


class RankState(msgspec.Struct, frozen=True):
    """State of a process of a supervisor.

    Attributes:
        pid: process id, 0 before it is started.
        state: `starting`, `ready`, `exited` or `silent` (no heartbeat).
        exit_code: as of `subprocess`: negative is a signal; None while it runs.
        error: reported error, or empty.
    """

    rank: int
    pid: int
    state: str
    exit_code: int | None = None
    error: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """A supervisor's report on its pod.

    Attributes:
        attempt: current attempt; 0 before the first.
        phase: `idle`, `starting`, `ready`, `lost` or `done`.
        reason: reason of `lost` or `done`.
        exit_code: exit status of the process that ended first.
        restarts: number of restarts.
    """

    role: str
    pod: int
    attempt: int
    phase: str
    ranks: tuple[RankState, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


class StartRanks(msgspec.Struct, frozen=True):
    """Start the ranks of this attempt, after killing those of earlier ones."""

    attempt: int
