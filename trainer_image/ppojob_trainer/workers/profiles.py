"""Profiler traces of ranks in selected steps, by torch.profiler: a file for each call."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ppojob_api.run_layout import PROFILE_FOLDER
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)

_WITH_MODELS: Final = ("actorRollout", "rollout", "reference", "critic", "rewardModel")

Tracer = Callable[[RequestId], AbstractContextManager[None]]


def tracer(environment: PodEnvironment, rank: RankEnvironment) -> Tracer:
    """Return the tracer of a rank, for the steps that `spec.profile` names.

    A trace that cannot be written is logged, and training continues.
    """
    spec, role = environment.config.spec.profile, environment.role
    if spec is None or role not in _WITH_MODELS or rank.rank not in spec.ranks:
        return lambda _: nullcontext()

    # Imported late: roles without models load no torch.
    from torch.profiler import profile

    @contextmanager
    def traced(work: RequestId) -> Iterator[None]:
        if work.step not in spec.steps:
            yield
            return
        with profile(
            record_shapes="shapes" in spec.contents,
            with_stack="stack" in spec.contents,
            profile_memory="memory" in spec.contents,
        ) as trace:
            yield
        stage = work.stage.replace("/", "-")
        folder = environment.run_folder / PROFILE_FOLDER / f"step-{work.step:06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{role}-{rank.rank:05d}-{stage}-{work.index}.json.gz"
            trace.export_chrome_trace(str(folder / name))
        except (OSError, RuntimeError) as error:
            _log.warning("spec.profile: %s is not written: %s", folder, error)

    return traced
