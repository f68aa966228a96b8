"""What a pod runs: its program, its configuration, and the models of the roles that live in it."""

from pathlib import Path

from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.rpc.identity import PodIdentity, code_digest, config_digest


def pod_identity(environment: PodEnvironment) -> PodIdentity:
    """Look at the files of this pod."""
    models = {}
    for path in sorted(_folders(environment)):
        try:
            models[path] = fingerprint(Path(path))
        except OSError as problem:
            models[path] = f"none: {problem.strerror}"  # whoever loads it tells more
    return PodIdentity(code_digest(), config_digest(environment.config), models)


def _folders(environment: PodEnvironment) -> set[str]:
    """Folders of models and tokenizers that the ranks of this pod read."""
    spec = environment.config.spec
    here = environment.config.topology.living_in(environment.role)
    found: set[str | None] = set()
    if here & {"actorRollout", "reference"}:
        found |= {spec.model.path}
    if "actorRollout" in here:
        found |= {spec.model.tokenizer_path}
    if "critic" in here and spec.critic is not None:
        found |= {spec.critic.path}
    if "rewardModel" in here and spec.reward_model is not None:
        found |= {spec.reward_model.path, spec.reward_model.tokenizer_path}
    return {path for path in found if path is not None}
