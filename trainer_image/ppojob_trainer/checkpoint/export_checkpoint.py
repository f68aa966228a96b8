"""Export of a model from a checkpoint, without a running job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.estimators import ESTIMATORS
from ppojob_api.v1alpha1.model import ModelSpec
from ppojob_api.v1alpha1.training import CriticSpec
from ppojob_trainer import remote_files
from ppojob_trainer.checkpoint import identity, manifest
from ppojob_trainer.checkpoint.export import export_adapters, export_model
from ppojob_trainer.checkpoint.manifest import AVERAGE_FILE, MODEL_FILE, files_of_all_ranks
from ppojob_trainer.checkpoint.store import CONFIG_NAME
from ppojob_trainer.checkpoint.tensors import read_parts
from ppojob_trainer.data.tokenizer_files import template_text
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.architectures import sizes_of
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.fingerprint import base_of
from ppojob_trainer.models.kinds import CRITIC, POLICY, PROCESS_REWARD, SCORER, ModelKind
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.log_partition import is_log_partition
from ppojob_trainer.models.lora import Adapter, adapters_in
from ppojob_trainer.models.nf4 import round_layers
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.rpc.messages.saving import FileEntry


@dataclass(frozen=True, slots=True)
class _Source:
    """The model to export."""

    role: str  # role whose files of the checkpoint are read
    kind: ModelKind
    model: ModelSpec  # its initial folder, its adapters, and the policy's tokenizer
    overrides: Mapping[str, Json]


def export_checkpoint(
    checkpoint: Path, target: Path, *, only_adapters: bool = False, critic: bool = False
) -> int:
    """Assemble a model's weights from the shards of any layout, and export them; return the step.

    It is the policy or the critic (a value model is a token classifier), or the EMA if the job has
    one. Adapters are merged into the initial model of the checkpoint's configuration, whose config,
    tokenizer and template are copied. With `only_adapters` the adapters are written in PEFT's
    format, and the base weights are not read.

    Raises:
        DamagedCheckpoint: a file is missing or differs from the manifest.
        StorageError: the disk refused.
        ConfigError: the model's folder, its tokenizer or its template is missing; there are no
            adapters, or there is no such critic; ``target`` holds inputs of the job.
        CannotResume: the adapters were trained on other weights than the model's.
    """
    found = manifest.read(checkpoint)
    settings = identity.settings_of(found, checkpoint)
    source = (_critic if critic else _policy)(settings["spec"], checkpoint)
    model = source.model
    _refuse_to_write_over(settings, target)
    dtype = torch.float32 if model.dtype == "float32" else torch.bfloat16
    tensors = _tensors(checkpoint, found.files, source)
    adapters = _adapters(tensors, model)
    head = {name: tensor for name, tensor in tensors.items() if not is_adapter(name)}
    if only_adapters and not adapters:
        raise ConfigError(
            f"--adapters: got {checkpoint}: its job has trained all weights; a job with "
            f"{source.kind.where.removesuffix('path')}lora, or the model without --adapters"
        )
    if only_adapters:
        export_adapters(target, adapters, model.path, head, source.kind)
        return found.progress.step
    if adapters:
        base = base_of(model.path)
        bases = {} if base is None else {source.kind.where: base}
        identity.check_bases(settings, bases, checkpoint)
        whole = load_model(model.path, dtype, kind=source.kind, overrides=source.overrides)
        if model.lora is not None and model.lora.base_type is not None:
            round_layers(whole)
        tensors = dict(hf_named_tensors(whole)) | head
    export_model(
        target,
        tensors.items(),
        model_folder=Path(model.path),
        dtype=dtype,
        tokenizer_folder=_tokenizer_folder(model),
        chat_template=template_text(model.chat_template) if model.chat_template else None,
        adapters=adapters,
        kind=source.kind,
        overrides=source.overrides,
    )
    return found.progress.step


def _refuse_to_write_over(settings: Mapping[str, Json], target: Path) -> None:
    """Protect the job's inputs: models, adapters in another export, and data."""
    for path in _paths(settings):
        if Path(path).resolve().is_relative_to(target.resolve()):
            why = f"the job began with {path}, which would be written over"
            raise ConfigError(f"--output: got {target}: {why}; another folder")


def _paths(settings: object) -> Iterator[str]:
    """Return all values of fields named path, in any section."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key in ("path", "tokenizerPath") and isinstance(value, str):
                yield value
            yield from _paths(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from _paths(value)


def _tensors(
    checkpoint: Path, files: Sequence[FileEntry], source: _Source
) -> dict[str, torch.Tensor]:
    """Return the model's weights, or its adapters; their EMA where it exists."""
    parts = dict[str, torch.Tensor]()
    names = [MODEL_FILE] if source.model.average_decay is None else [MODEL_FILE, AVERAGE_FILE]
    for name in names:
        entries = files_of_all_ranks(files, source.role, name, checkpoint.name)
        parts |= read_parts(checkpoint, entries, None, rank=0)
    return {name: tensor for name, tensor in parts.items() if not is_log_partition(name)}


def _adapters(tensors: Mapping[str, torch.Tensor], model: ModelSpec) -> dict[str, Adapter]:
    """Return the adapters among a checkpoint's tensors; none after full training."""
    if model.lora is None:
        return {}
    sizes = sizes_of(model.path)
    return adapters_in(tensors, model.lora, transposed_dims=sizes.transposed_dims if sizes else 0)


def _policy(spec: Mapping[str, Any], checkpoint: Path) -> _Source:
    try:
        model = _located(ModelSpec.model_validate(spec.get("model")), checkpoint)
    except ValidationError:
        why = "its model settings are of another version"
        raise DamagedCheckpoint(f"{checkpoint.name}/{CONFIG_NAME}", why) from None
    kind = SCORER if spec["algorithm"]["type"] == "reward_model" else POLICY
    return _Source("actorRollout", kind, model, config_changes(model.path, model))


def _critic(spec: Mapping[str, Any], checkpoint: Path) -> _Source:
    policy = _policy(spec, checkpoint).model
    critics = {str(name): one.critic for name, one in ESTIMATORS.items() if one.critic}
    trained = critics.get(spec["algorithm"]["type"])
    if trained is None:
        types = " or ".join(critics)
        raise ConfigError(
            f"--critic: got {checkpoint}: its job has trained no critic; that of a job of type: "
            f"{types}, or the policy without --critic"
        )
    critic = CriticSpec.model_validate(spec.get("critic"))
    changes = {"path": critic.path, "lora": critic.lora, "average_decay": None}
    own = _located(policy.model_copy(update=changes), checkpoint)
    kind = CRITIC if trained == "value" else PROCESS_REWARD
    return _Source("critic", kind, own, config_changes(own.path, policy))


def _located(model: ModelSpec, checkpoint: Path) -> ModelSpec:
    found = remote_files.local_paths(checkpoint.resolve().parents[1])
    given = {"path": model.path, "tokenizer_path": model.tokenizer_path}
    fetched = {name: found[url] for name, url in given.items() if url in found}
    return model.model_copy(update=fetched)


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
