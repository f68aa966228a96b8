"""Messages of supervisors."""

import msgspec


class RankState(msgspec.Struct, frozen=True):
    """What a supervisor knows of one of its processes.

    Attributes:
        pid: process id, 0 before it is started.
        state: `starting`, `ready`, `exited` or `silent` (no heartbeat).
        exit_code: as of `subprocess`: negative is a signal; None while it runs.
        error: the first line of what it reported before it ended, or empty.
    """

    rank: int
    pid: int
    state: str
    exit_code: int | None = None
    error: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """A supervisor's report on its pod.

    Attributes:
        attempt: attempt whose ranks it runs; 0 before the first.
        phase: `idle`, `starting`, `ready`, `lost` or `done`.
        reason: why the phase is `lost`, or how it is `done`.
        exit_code: for the controller's pod: how the controller ended.
        restarts: how often processes of this pod were restarted.
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
    """Start the ranks of this attempt, after ending those of any earlier one."""

    attempt: int
