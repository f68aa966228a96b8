"""Failpoints of a job's processes: which there are, arming them, which have fired."""

import functools
import subprocess
import sys
from pathlib import Path

# Hit only when something was damaged or thrown away: see the tests that do so.
_ONLY_ON_DAMAGE = ("checkpoint.replace.",)
# Answers of roles in pods of their own: test_roles.py and test_rollout_pods.py of tests/jobs.
_ONLY_BETWEEN_ROLES = (
    "rpc.act.",
    "rpc.barrier.",
    "rpc.sync_engine_weights.",
    "rpc.transfer_rows.",
    "rpc.score_by_model.",
    "rpc.move_columns.",
    "rpc.move_rows.",
    "rpc.open_channel.",
)
_OF_GIVEN_ANSWERS = ("rpc.demonstrate.", "rpc.measure_loss.", "rpc.supervise.")
"""Of given answers: test_sft.py, test_preferences.py and test_demonstrations_beside_rollouts.py."""
_OF_AN_INDEX = ("index.",)
"""Those of `ppojob index`, whose names are loaded with the tool `search`: test_index_goes_on.py."""
_OF_STORES = ("fetched.", "copied.", "restored.", "branched.")
"""Files behind URLs, copies and branches: unit/test_remote_files.py and unit/checkpoint."""
_OF_GENERATION = ("responses.",)
"""Of a job that only generates: test_generate_and_evaluate.py."""
_OF_STEPS_AHEAD = ("rows.under_way.",)
"""Of a job with rows of later steps under way: test_one_step_off.py."""
_OF_A_TEACHER = ("rpc.reprompt.",)
"""Of a job that makes prompts for its teacher: test_distillation.py."""
_OF_STORED_ROWS = ("rpc.load_rows.",)
"""Of rows that are trained on again: test_replay.py, test_dynamic_sampling.py."""
ONLY_ON_CUT = ("metrics.cut.", "rows.cut.")
"""Hit where a job that goes back throws away what it wrote behind its last checkpoint."""


@functools.cache
def all_points() -> list[str]:
    """Names of all failpoints of the controller and of every role's ranks."""
    code = (
        "import ppojob_trainer.controller.main, ppojob_trainer.workers.actor_rollout, "
        "ppojob_trainer.workers.reward, ppojob_trainer.workers.tools\n"
        "from ppojob_trainer import failpoints\n"
        "print('\\n'.join(failpoints.all_points()))"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def of_a_small_job() -> list[str]:
    """Names of those that a job hits whose models all live in one role."""
    left_out = (
        *(_ONLY_ON_DAMAGE + _ONLY_BETWEEN_ROLES),
        *(_OF_GIVEN_ANSWERS + _OF_AN_INDEX + _OF_STORES + _OF_GENERATION + _OF_STEPS_AHEAD),
        *(_OF_A_TEACHER + _OF_STORED_ROWS),
    )
    return [point for point in all_points() if not point.startswith(left_out)]


def armed(once: Path, *points: str) -> dict[str, str]:
    """The environment that arms failpoints (`<name>@<n>=<action>`), each once over all processes.

    Those that have fired leave a marker in the folder `once`.
    """
    once.mkdir(exist_ok=True)
    return {
        "PPOJOB_ENABLE_FAILPOINTS": "1",
        "PPOJOB_FAILPOINT": ";".join(points),
        "PPOJOB_FAILPOINT_ONCE": str(once),
    }


def fired(once: Path) -> set[str]:
    """Names of the points that have left a marker."""
    return {marker.name.split("@")[0] for marker in once.iterdir()}
