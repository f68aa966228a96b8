"""The policy of a commit as a Hugging Face folder, without a job that runs."""

from pathlib import Path
from typing import Final

import torch
from pydantic import ValidationError

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.training import ModelSpec
from ppojob_trainer.checkpoint import identity, manifest
from ppojob_trainer.checkpoint.commit import CONFIG_NAME
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.files import MODEL_FILE, files_of_all_ranks
from ppojob_trainer.checkpoint.manifest import Manifest
from ppojob_trainer.checkpoint.parts import read_parts
from ppojob_trainer.errors import ConfigError, DamagedCommit

POLICY_ROLE: Final = "actorRollout"


def export_commit(commit: Path, target: Path) -> int:
    """Put the policy's weights together, however many ranks wrote them, and write them.

    The commit's own configuration names the model that training began from, whose config, tokenizer
    and template go along.

    Args:
        commit: folder of a sealed commit.
        target: the folder that is made, or replaced as a whole.

    Returns:
        The commit's step.

    Raises:
        DamagedCommit: a file is absent or not what the manifest says.
        StorageError: the disk refused.
        ConfigError: the model's folder, its tokenizer or its template is gone.
    """
    name = f"{commit.name}/{manifest.MANIFEST_NAME}"
    try:
        found = manifest.decode((commit / manifest.MANIFEST_NAME).read_bytes(), name)
    except OSError as error:
        raise DamagedCommit(name, f"cannot be read: {error.strerror}") from error
    model = _model(found, commit)
    entries = files_of_all_ranks(found.files, POLICY_ROLE, MODEL_FILE, commit.name)
    export_model(
        target,
        read_parts(commit, entries, {}, rank=0).items(),
        model_folder=Path(model.path),
        dtype=torch.float32 if model.dtype == "float32" else torch.bfloat16,
        tokenizer_folder=_tokenizer_folder(model),
        chat_template=_chat_template(model),
    )
    return found.progress.step


def _model(found: Manifest, commit: Path) -> ModelSpec:
    """What the job says of its model."""
    spec = identity.settings_of(found, commit).get("spec")
    try:
        return ModelSpec.model_validate(spec.get("model") if isinstance(spec, dict) else None)
    except ValidationError:
        why = "it says nothing of a model that this version knows"
        raise DamagedCommit(f"{commit.name}/{CONFIG_NAME}", why) from None


def _tokenizer_folder(model: ModelSpec) -> Path | None:
    if model.tokenizer_path is None:
        return None
    folder = Path(model.tokenizer_path)
    if not folder.is_dir():
        raise ConfigError(
            f"spec.model.tokenizerPath: got {shown(model.tokenizer_path)}: there is no such folder;"
            " the folder of the tokenizer, where the job had it"
        )
    return folder


def _chat_template(model: ModelSpec) -> str | None:
    if model.chat_template is None:
        return None
    try:
        return Path(model.chat_template).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"spec.model.chatTemplate: got {shown(model.chat_template)}: it cannot be read:"
            f" {error}; the file with the template, where the job had it"
        ) from error
