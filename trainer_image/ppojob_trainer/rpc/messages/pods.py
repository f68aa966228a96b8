"""Messages of supervisors."""

import msgspec


class RankState(msgspec.Struct, frozen=True):
    """State of a process of a supervisor."""

    rank: int
    pid: int  # process id, 0 before it is started
    state: str  # `starting`, `ready`, `exited` or `silent` (no heartbeat)
    exit_code: int | None = None  # as of `subprocess`: negative is a signal; None while it runs
    error: str = ""  # reported error, or empty


class PodStatus(msgspec.Struct, frozen=True):
    """A supervisor's report on its pod."""

    role: str
    pod: int
    attempt: int  # current attempt; 0 before the first
    phase: str  # `idle`, `starting`, `ready`, `lost` or `done`
    ranks: tuple[RankState, ...] = ()
    reason: str = ""  # reason of `lost` or `done`
    exit_code: int | None = None  # exit status of the process that ended first
    restarts: int = 0


class StartRanks(msgspec.Struct, frozen=True):
    """Start the ranks of this attempt, after killing those of earlier ones."""

    attempt: int
