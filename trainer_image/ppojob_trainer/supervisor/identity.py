"""What a pod runs: its program, its configuration, and the models of the roles that live in it."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.models.weight_files import BadHeader
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.rpc.identity import PodIdentity, code_digest, config_digest

_log = logging.getLogger(__name__)


class OwnIdentity:
    """What this pod tells of itself: from memory, since storage may make its reader wait.

    Args:
        environment: of the pod.
        read: gives the digest of a folder.
    """

    def __init__(
        self, environment: PodEnvironment, read: Callable[[Path], str] = fingerprint
    ) -> None:
        self._folders = sorted(_folders(environment))
        self._read = read
        self._known = PodIdentity(
            code_digest(),
            config_digest(environment.config),
            models=None,
            native_bfloat16=has_native_bfloat16(),
        )

    def tell(self) -> PodIdentity:
        """What is known by now; never waits, and may be asked from any thread."""
        return self._known

    def read_models(self) -> None:
        """Look at the files of this pod, once; for a thread of its own."""
        models = {}
        for path in self._folders:
            try:
                models[path] = self._read(Path(path))
            except (OSError, BadHeader) as problem:  # whoever loads it tells more
                _log.warning("%s: not compared with that of other pods: %s", path, problem)
        self._known = msgspec.structs.replace(self._known, models=models)


def _folders(environment: PodEnvironment) -> set[str]:
    """Folders of models and tokenizers that the ranks of this pod read."""
    spec = environment.config.spec
    here = environment.config.topology.living_in(environment.role)
    found: set[str | None] = set()
    if here & {"actorRollout", "rollout", "reference"}:
        found |= {spec.model.path}
    if here & {"actorRollout", "rollout"}:
        found |= {spec.model.tokenizer_path}
    if "critic" in here and spec.critic is not None:
        found |= {spec.critic.path}
    if "rewardModel" in here and spec.reward_model is not None:
        found |= {spec.reward_model.path, spec.reward_model.tokenizer_path}
    return {path for path in found if path is not None}
