"""Cases 86 and 106 of the catalogue: pods that do not run the same program, settings or model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_jobs
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model, save_tokenizer

from ppojob_api.run_config import resolve
from ppojob_api.well_known import RoleName
from ppojob_cli.validate import load_job
from ppojob_trainer.controller.agreement import Agreement
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.rpc.identity import PodIdentity, code_digest, config_digest
from ppojob_trainer.supervisor.identity import pod_identity

A, B = "a" * 64, "b" * 64


def refusal(agreement: Agreement, pod: str, identity: PodIdentity) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        agreement.admit([pod], [identity])
    return refused.value.problems


def test_pods_that_run_the_same_are_admitted() -> None:
    agreement = Agreement(code=A, config=B)
    same = PodIdentity(A, B, {"/m": A})
    agreement.admit(["job-actor-0", "job-actor-1"], [same, same])
    agreement.admit(["job-critic-0"], [PodIdentity(A, B, {"/critic": B})])
    agreement.admit(["job-reward-0"], [PodIdentity(A, B, {})])


def test_another_program_and_other_settings_are_named_with_their_pod() -> None:
    assert refusal(Agreement(code=A, config=A), "job-critic-1", PodIdentity(B, B, {})) == (
        "job-critic-1: got program bbbbbbbbbbbb: the controller's is aaaaaaaaaaaa; one image for "
        "all pods of a job",
        "job-critic-1: got configuration bbbbbbbbbbbb: the controller's is aaaaaaaaaaaa; one "
        "ConfigMap for all pods of a job",
    )


def test_another_model_under_the_same_path_is_named_with_both_pods() -> None:
    agreement = Agreement(code=A, config=A)
    agreement.admit(["job-actor-0"], [PodIdentity(A, A, {"/m": A})])
    assert refusal(agreement, "job-reference-0", PodIdentity(A, A, {"/m": B})) == (
        "/m: got bbbbbbbbbbbb in job-reference-0 and aaaaaaaaaaaa in job-actor-0: ranks must begin "
        "with the same weights; the same files in all pods",
    )


def test_a_pod_that_is_made_again_counts_as_it_is_now() -> None:
    agreement = Agreement(code=A, config=A)
    agreement.admit(["job-actor-0"], [PodIdentity(A, A, {"/m": A})])
    agreement.admit(["job-actor-0"], [PodIdentity(A, A, {"/m": B})])
    agreement.admit(["job-reference-0"], [PodIdentity(A, A, {"/m": B})])


# What the digests tell


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def retrained(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] += 1e-3 * torch.randn(16)
    save_file(weights, path, {"format": "pt"})


def with_other_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("change", [retrained, with_other_template, without_weights])
def test_another_model_has_another_fingerprint(change: Callable[[Path], None], model: Path) -> None:
    before = fingerprint(model)
    assert fingerprint(model) == before
    change(model)
    assert fingerprint(model) != before


def environment(folder: Path, role: RoleName, **changes: object) -> PodEnvironment:
    """Of a pod of a tiny job with a critic, whose models are below the folder."""
    manifest = tiny_jobs.write_manifest(folder, folder, **{**tiny_jobs.PPO, **changes})
    return PodEnvironment(
        config=resolve(load_job(manifest)),
        role=role,
        pod_index=0,
        address="127.0.0.1",
        keys=folder,
        run_folder=folder,
        scratch=folder,
        address_book={},
        die_with_parent=False,
        api_access=None,
    )


def test_a_pod_tells_of_the_models_of_its_roles(model: Path) -> None:
    own_pods = {"roles": tiny_jobs.OWN_PODS}
    for role in ("actorRollout", "reference", "critic"):
        identity = pod_identity(environment(model.parent, role, **own_pods))
        assert identity.models == {str(model): fingerprint(model)}
    assert pod_identity(environment(model.parent, "reward")).models == {}
    other = {"critic": {**tiny_jobs.PPO["critic"], "path": "/no/critic"}}
    assert pod_identity(environment(model.parent, "actorRollout", **other)).models == {
        str(model): fingerprint(model),
        "/no/critic": "none: No such file or directory",
    }


def test_settings_that_may_change_on_the_way_do_not_count(tmp_path: Path) -> None:
    first = config_digest(environment(tmp_path, "critic").config)
    longer = environment(tmp_path, "critic", steps={"total": 99}).config
    other = environment(tmp_path, "critic", optimizer={"learningRate": 1e-5}).config
    assert config_digest(longer) == first
    assert config_digest(other) != first


def test_a_program_has_a_digest() -> None:
    assert len(code_digest()) == 64
