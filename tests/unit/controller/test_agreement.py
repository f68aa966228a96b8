import errno
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import tiny_jobs
import torch
from lone_role import pod_of
from safetensors.torch import load_file, save_file
from tiny_models import save_model, save_tokenizer

from ppojob_api.problem import Problem
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.weight_files import BadHeader
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.rpc.identity import Agreement, PodIdentity, config_digest, program_digest
from ppojob_trainer.supervisor.main import IdentityReader

A, B = "a" * 64, "b" * 64
RECORD = """\
ppojob_api/contract.py,sha256=one,10
ppojob_trainer/__init__.py,sha256=two,20
ppojob_trainer/rpc/identity.py,sha256=three,30
ppojob_cli/main.py,sha256=four,40
ppojob-0.1.0.dist-info/METADATA,sha256=five,50
ppojob_trainer/__pycache__/__init__.cpython-311.pyc,,
"""


def test_pods_that_run_the_same_are_admitted_as_they_are_now() -> None:
    agreement = Agreement(code=A, config=B)
    for model in (A, B):  # a pod that is made again counts as it is now
        same = PodIdentity(A, B, {"/m": model})
        agreement.admit(["job-actor-0", "job-actor-1"], [same, same])
    agreement.admit(["job-reference-0"], [same])
    agreement.admit(["job-critic-0"], [PodIdentity(A, B, {"/critic": B})])
    agreement.admit(["job-reward-0"], [PodIdentity(A, B, {})])


def test_another_program_other_settings_and_another_model_are_told_with_their_pods() -> None:
    agreement = Agreement(code=A, config=A)
    agreement.admit(["job-actor-0"], [PodIdentity(A, A, {"/m": A})])
    with pytest.raises(ConfigError) as refused:
        agreement.admit(["job-critic-1"], [PodIdentity(B, B, {"/m": B})])
    assert refused.value.problems == (
        "job-critic-1: got program bbbbbbbbbbbb: the controller's is aaaaaaaaaaaa; one image for "
        "all pods of a job",
        "job-critic-1: got configuration bbbbbbbbbbbb: the controller's is aaaaaaaaaaaa; one "
        "ConfigMap for all pods of a job",
        "/m: got bbbbbbbbbbbb in job-critic-1 and aaaaaaaaaaaa in job-actor-0: ranks must begin "
        "with the same weights; the same files in all pods",
    )


def test_types_of_numbers_that_depend_on_the_processor_are_named() -> None:
    agreement = Agreement(code=A, config=A, native_bfloat16=True)
    # The types are written out in the job, so its configuration is the same on any processor.
    agreement.admit(["job-critic-1"], [PodIdentity(A, A, {})])
    with pytest.raises(ConfigError) as refused:
        agreement.admit(["job-critic-1"], [PodIdentity(A, B, {})])
    (problem,) = refused.value.problems
    assert problem.startswith("job-critic-1: got a processor without native bfloat16: ")
    assert "spec.training.autocast" in problem


def test_a_pod_that_does_not_know_its_models_yet_is_compared_in_all_else() -> None:
    agreement = Agreement(code=A, config=A)
    assert agreement.admit(["job-actor-0"], [PodIdentity(A, A, None)]) == ["job-actor-0"]
    assert agreement.admit(["job-reference-0"], [PodIdentity(A, A, {"/m": A})]) == []
    with pytest.raises(ConfigError, match=r"^job-critic-0: got program"):
        agreement.admit(["job-critic-0"], [PodIdentity(B, A, None)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("file", ["model.safetensors", "chat_template.jinja"])
def test_another_model_has_another_fingerprint(file: str, model: Path) -> None:
    seen = [fingerprint(model)]
    assert fingerprint(model) == seen[0]
    if file == "model.safetensors":
        weights = load_file(model / file)
        weights["model.norm.weight"] += 1e-3 * torch.randn(16)
        save_file(weights, model / file, {"format": "pt"})
    else:
        (model / file).write_text("{{ messages }}")
    seen.append(fingerprint(model))
    (model / file).unlink()
    seen.append(fingerprint(model))
    assert len({*seen}) == 3
    # One pod that reads none of the header would else hold another model than the others.
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(BadHeader, match="pointer"):
        fingerprint(model)


def environment(folder: Path, role: RoleName, **changes: object) -> PodEnvironment:
    """Of a pod of a tiny job with a critic, whose models are below the folder."""
    return pod_of(folder, role, **{**tiny_jobs.PPO, **changes})


def known(environment: PodEnvironment, **how: Callable[[Path], str]) -> dict[str, str] | None:
    """The models of a pod that has looked at its files."""
    own = IdentityReader(environment, **how)
    own.read_models()
    return own.current.models


def test_a_pod_tells_of_the_models_of_its_roles_that_it_can_read(model: Path) -> None:
    """An error of storage in one pod must not read as another model; loading it tells."""
    own_pods = {"roles": tiny_jobs.OWN_PODS}
    for role in ("actorRollout", "reference", "critic"):
        models = known(environment(model.parent, role, **own_pods))
        assert models == {str(model): fingerprint(model)}
    assert known(environment(model.parent, "reward")) == {}
    other = {"critic": {**tiny_jobs.PPO["critic"], "path": "/no/critic"}}
    pod = environment(model.parent, "actorRollout", **other)
    assert known(pod) == {str(model): fingerprint(model)}

    def stale(_: Path) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    def broken(_: Path) -> str:
        raise BadHeader(Problem("a", "b", "c", "d", ModelReason.BAD_SAFETENSORS))

    assert known(pod, read=stale) == {}
    assert known(pod, read=broken) == {}


def test_a_pod_answers_while_its_files_are_read_and_reads_them_once(model: Path) -> None:
    may_go_on = threading.Event()
    looked: list[Path] = []

    def slow(folder: Path) -> str:
        looked.append(folder)
        assert may_go_on.wait(60)
        return A

    pod = environment(model.parent, "actorRollout")
    own = IdentityReader(pod, read=slow)
    reading = threading.Thread(target=own.read_models, daemon=True)
    reading.start()
    before = own.current
    assert before.models is None
    assert before.config == config_digest(pod.config)
    may_go_on.set()
    reading.join(60)
    assert own.current == msgspec.structs.replace(before, models={str(model): A})
    assert looked == [model]


def test_settings_that_may_change_on_the_way_do_not_count(tmp_path: Path) -> None:
    first = config_digest(environment(tmp_path, "critic").config)
    longer = environment(tmp_path, "critic", steps={"total": 99}).config
    other = environment(tmp_path, "critic", optimizer={"learningRate": 1e-5}).config
    assert config_digest(longer) == first
    assert config_digest(other) != first


def test_a_program_is_its_source_files_whatever_an_installer_adds() -> None:
    first, lines = program_digest("1", RECORD), RECORD.splitlines()
    for record in (lines[:3], reversed(lines)):
        assert program_digest("1", "\n".join(record)) == first
    assert program_digest("2", RECORD) != first
    for line in lines[:3]:
        changed = RECORD.replace(line, line.replace("sha256=", "sha256=x"))
        assert program_digest("1", changed) != first
        assert program_digest("1", RECORD.replace(f"{line}\n", "")) != first
