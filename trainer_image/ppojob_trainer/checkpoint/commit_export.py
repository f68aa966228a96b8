"""The policy of a commit as a Hugging Face folder, without a job that runs."""

from pathlib import Path
from typing import Final

import torch

from ppojob_api.v1alpha1.training import ModelSpec
from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.files import MODEL_FILE, files_of_all_ranks
from ppojob_trainer.checkpoint.parts import read_parts
from ppojob_trainer.errors import DamagedCommit

POLICY_ROLE: Final = "actorRollout"


def export_commit(commit: Path, model: ModelSpec, target: Path) -> int:
    """Put the policy's weights together, however many ranks wrote them, and write them.

    Args:
        commit: folder of a sealed commit.
        model: of the job, whose config, tokenizer and template go along.
        target: the folder that is made, or replaced as a whole.

    Returns:
        The commit's step.

    Raises:
        DamagedCommit: a file is absent or not what the manifest says.
        StorageError: the disk refused.
        ConfigError: the model's folder is gone.
    """
    name = f"{commit.name}/{manifest.MANIFEST_NAME}"
    try:
        found = manifest.decode((commit / manifest.MANIFEST_NAME).read_bytes(), name)
    except OSError as error:
        raise DamagedCommit(name, f"cannot be read: {error.strerror}") from error
    entries = files_of_all_ranks(found.files, POLICY_ROLE, MODEL_FILE, commit.name)
    export_model(
        target,
        read_parts(commit, entries, rank=0, size=1).items(),
        model_folder=Path(model.path),
        dtype=torch.float32 if model.dtype == "float32" else torch.bfloat16,
        tokenizer_folder=Path(model.tokenizer_path or model.path),
        chat_template=Path(model.chat_template).read_text() if model.chat_template else None,
    )
    return found.progress.step
