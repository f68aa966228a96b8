"""Models that the policy is compared with, where they are others than it was itself."""

from typing import Annotated

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Name, Path, Section


class TeacherSpec(Section):
    """A reference for the rows of some data sources."""

    path: Path
    """Folder, like reference.path."""

    data_sources: Annotated[Items[Name], Field(min_length=1, max_length=64)]
    """Data sources of its rows; see data.dataSourceKey."""


class ReferenceSpec(Section):
    """The frozen models that the policy is compared with, if not its own initial weights."""

    path: Path | None = None
    """Folder in Hugging Face form of a model with the policy's tokenizer; it may be larger. Absent:
    every row has one of the teachers. verl: actor_rollout_ref.ref.model.path."""

    teachers: Annotated[Items[TeacherSpec], Field(max_length=16)] = ()
    """Other models for the rows of some data sources, for a KL as well as for distillation. verl:
    distillation.teacher_models."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Folders of all models; a model's number is its place here."""
        own = () if self.path is None else (self.path,)
        return (*own, *(teacher.path for teacher in self.teachers))

    @property
    def data_sources(self) -> frozenset[str] | None:
        """Whose rows are read; None for all."""
        if self.path is not None:
            return None
        return frozenset(source for teacher in self.teachers for source in teacher.data_sources)

    def number_for(self, data_source: str) -> int | None:
        """Number of the model that reads the rows of a data source; None where none does."""
        first = 0 if self.path is None else 1
        for number, teacher in enumerate(self.teachers, first):
            if data_source in teacher.data_sources:
                return number
        return None if self.path is None else 0
