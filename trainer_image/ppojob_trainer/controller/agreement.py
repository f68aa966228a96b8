"""Whether all pods of a job run the same: program, configuration, and files of models.

Images and volumes are the platform's: a node may hold an older image of the same tag, a volume of
its own another model in the same place. Nothing would fail then, and the weights would be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.identity import PodIdentity

_SHOWN_DIGITS: Final = 12


@dataclass
class Agreement:
    """Remembers what the pods run, and admits those that run the same.

    The digests, and whether the processor multiplies bfloat16 natively, are the controller's.
    """

    code: str
    config: str
    native_bfloat16: bool = False
    _models: dict[str, dict[str, str]] = field(default_factory=dict)

    def admit(self, pods: Sequence[str], identities: Sequence[PodIdentity]) -> list[str]:
        """Take pods in, which may have been made again since they were seen last.

        Returns those that have not read their models yet, which are to be asked again.

        Raises:
            ConfigError: one runs something else; all that differ are named.
        """
        problems = []
        for pod, identity in zip(pods, identities, strict=True):
            problems += _other(pod, identity.code, self.code, "program", "image")
            problems += self._of_config(pod, identity)
            self._models[pod] = identity.models or {}
        problems += self._of_models()
        if problems:
            raise ConfigError(problems)
        return [pod for pod, known in zip(pods, identities, strict=True) if known.models is None]

    def _of_config(self, pod: str, identity: PodIdentity) -> list[str]:
        if identity.config == self.config or identity.native_bfloat16 == self.native_bfloat16:
            return _other(pod, identity.config, self.config, "configuration", "ConfigMap")
        theirs, ours = (
            f"{'with' if native else 'without'} native bfloat16"
            for native in (identity.native_bfloat16, self.native_bfloat16)
        )
        return [
            f"{pod}: got a processor {theirs}: the controller's is {ours}, and types of numbers "
            "are auto; one kind of processor for all pods, or spec.training.autocast and the "
            "dtypes of spec.rollout and spec.rewardModel written out"
        ]

    def _of_models(self) -> list[str]:
        problems = []
        first: dict[str, tuple[str, str]] = {}
        for pod, models in self._models.items():
            for path, digest in models.items():
                other, known = first.setdefault(path, (pod, digest))
                if digest != known:
                    problems.append(
                        f"{path}: got {_short(digest)} in {pod} and {_short(known)} in {other}: "
                        "ranks must begin with the same weights; the same files in all pods"
                    )
        return problems


def _other(pod: str, theirs: str, ours: str, what: str, source: str) -> list[str]:
    if theirs == ours:
        return []
    return [
        f"{pod}: got {what} {_short(theirs)}: the controller's is {_short(ours)}; "
        f"one {source} for all pods of a job"
    ]


def _short(digest: str) -> str:
    return digest[:_SHOWN_DIGITS]
