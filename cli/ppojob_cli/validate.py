"""`ppojob validate`: every problem of a job and its inputs, before anything is started."""

import os
from collections.abc import Iterator, Sequence

import click

from ppojob_api import contract, manifest, remote_files, validation
from ppojob_api.checks.pods import all_settings
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.job_file import validate_file
from ppojob_cli.options import set_option
from ppojob_trainer.errors import PPOJobError

_JUDGED = "so that only the manifest was judged"
NOT_CHECKED = "the files of model, data and code were not checked yet: mend the manifest first"
_OF_MANIFEST = ("spec", "metadata", "--set")


@click.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@set_option
@click.option(
    "--offline", is_flag=True, help="Check only the manifests; read no file that they name."
)
def validate(files: tuple[str, ...], overrides: tuple[str, ...], *, offline: bool) -> None:
    """Check PPOJob manifests and the files that they name.

    FILE is - for standard input. Reads model folders, tokenizer, chat template and every row, and
    loads the reward functions once, as `ppojob run` does before it starts anything. Prints every
    problem of every FILE as one line, `where: got: why; what is allowed`, and ends with status 2 if
    there is any. Files are checked once the manifest has no problem. Warnings are
    lines too, and do not change the status. Only `ppojob run` checks whether this machine can run
    the job.
    """
    is_good = True
    first: dict[str, str] = {}
    for path in files:
        name, judged = manifest.display_name(path), validate_file(path, overrides)
        if isinstance(judged, PPOJob):
            job, got = f"{judged.metadata.namespace}/{judged.metadata.name}", judged.metadata.name
            if other := first.get(job):
                where, why = "metadata.name", f"{other} describes the job {job} already"
                code = ReasonCode.DUPLICATE
                judged = [Problem(where, shown(got), why, "another name", code)]
            first.setdefault(job, name)
        errors, warnings = _found(judged, offline=offline)
        of = name if len(files) > 1 else None
        for line in warnings:
            click.echo(f"warning: {_named(line, of)}", err=True)
        for line in errors:
            click.echo(_named(line, of), err=True)
        if isinstance(judged, PPOJob) and not errors:
            click.echo(f"{name}: ok: PPOJob {judged.metadata.namespace}/{judged.metadata.name}")
        is_good = is_good and not errors
    if not is_good:
        raise SystemExit(contract.EXIT_INVALID)


def _named(line: str, file: str | None) -> str:
    """Put the name of the file before a line, if there are several files."""
    return line if file is None or line.startswith(f"{file}:") else f"{file}: {line}"


def _found(judged: list[Problem] | PPOJob, *, offline: bool) -> tuple[Sequence[str], Sequence[str]]:
    if isinstance(judged, list):
        is_read = any(problem.where.startswith(_OF_MANIFEST) for problem in judged)
        return [*map(str, judged), *([] if offline or not is_read else [NOT_CHECKED])], []
    elsewhere = [] if offline else [*_not_mounted(judged), *_behind_urls(judged)]
    if offline or elsewhere:
        missing = list[str]()
        if not offline and remote_files.urls(judged.spec):
            from ppojob_trainer.remote_files import unreadable_urls  # fsspec is not everywhere

            missing += unreadable_urls(judged.spec)
        notes = validation.warnings(judged) + ([] if missing else elsewhere)
        if offline:  # which is for files of a cluster
            from ppojob_operator.plan import cluster_problems
            from ppojob_operator.settings import Settings

            notes += cluster_problems(judged, Settings())
        return missing, list(map(str, notes))
    # Slow to load, and not in every installation.
    from ppojob_cli.preflight import check_inputs
    from ppojob_trainer.checkpoint import branches

    config = resolve(judged)
    try:
        found = check_inputs(config)
        found.add(branches.problems(config, rows=found.rows))
    except PPOJobError as problem:
        return str(problem).splitlines(), []
    return found.errors, found.warnings


def _not_mounted(job: PPOJob) -> Iterator[Problem]:
    """Yield volumes of the job's pods, and code in ConfigMaps, that are not on this machine."""
    paths = list(_texts(job.spec.model_dump(mode="json", exclude={"pods"})))
    for where, settings in all_settings(job):
        for index, volume in enumerate(settings.volumes):
            used = any(f"{path}/".startswith(f"{volume.folder}/") for path in paths)
            if used and not os.path.isdir(volume.folder):
                field, got = f"{where}.volumes[{index}].mountPath", shown(volume.mount_path)
                why = f"there is no such folder on this machine, {_JUDGED}"
                allowed = "the same command where the volume is mounted"
                yield Problem(field, got, why, allowed, ReasonCode.UNREADABLE)
    for where, role, source in job.spec.code_maps:
        why = f"{role} pods alone read a ConfigMap, {_JUDGED}"
        allowed = "fine; a file in source.path is judged here too"
        yield Problem(where, shown(source.name), why, allowed, ReasonCode.UNREADABLE)


def _behind_urls(job: PPOJob) -> Iterator[Problem]:
    for url, where in remote_files.urls(job.spec).items():
        why = f"its files are fetched when the job runs, {_JUDGED}"
        yield Problem(where, shown(url), why, "fine", ReasonCode.UNREADABLE)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
