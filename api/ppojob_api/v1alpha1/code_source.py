"""Where code of a job's own is: a file, or a ConfigMap that the pods that run it mount."""

from typing import Final

from ppojob_api.v1alpha1.kubernetes_names import ObjectName
from ppojob_api.v1alpha1.section import Name, Path, Section

CODE_FOLDER: Final = "/ppojob/code"
"""Where pods find the ConfigMaps of the code that they run, a folder each."""


class ConfigMapSource(Section):
    """Code in a ConfigMap of the job's namespace, which the pods that run it alone mount."""

    name: ObjectName
    """Name of the ConfigMap."""

    key: Name
    """Key that holds the Python file: reward.py. Its other keys are files beside it."""


class CodeSource(Section):
    """A Python file."""

    path: Path | None = None
    """Python file."""

    config_map: ConfigMapSource | None = None
    """Python file in a ConfigMap, on a cluster."""

    @property
    def file(self) -> str | None:
        """The Python file, where the pods that run it find it; None where there is none."""
        if self.config_map is not None:
            return f"{CODE_FOLDER}/{self.config_map.name}/{self.config_map.key}"
        return self.path


def source_field(file: str) -> str:
    """The field that says where a file is, by its place in a pod."""
    return "source.configMap" if file.startswith(f"{CODE_FOLDER}/") else "source.path"
