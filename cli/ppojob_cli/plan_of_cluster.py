"""What a job is on a cluster: the memory it needs, and the objects that an operator makes of it."""

import datetime
from collections.abc import Iterator
from typing import Any

from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import KIND, RoleName
from ppojob_cli.figures import counted
from ppojob_operator.build.gang import GANGS
from ppojob_operator.build.objects import base_objects, bindings, key_templates, stateful_sets
from ppojob_operator.plan import cluster_problems
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job

_UNLIMITED = "memory without limit"


def cluster_lines(config: RunConfig) -> Iterator[str]:
    """The pods with what they ask for, and every object by its name; or why there are none."""
    manifest = config.job()
    problems = cluster_problems(manifest)
    if problems:
        yield "no objects: an operator refuses this file"
        yield from map(str, problems)
        return
    job = Job(
        namespace=config.namespace,
        name=config.name,
        uid=config.uid,
        generation=1,
        resource_version="",
        created=datetime.datetime.fromtimestamp(0, datetime.UTC),
        is_deleting=False,
        lifecycle=config.spec.lifecycle,
        recovery=config.spec.recovery,
        scheduling=config.spec.scheduling,
        manifest=manifest,
        problems=(),
        status=PPOJobStatus(),
    )
    written, roles = pod_config(job, manifest), config.topology.with_own_pods
    sets = stateful_sets(job, written, roles, Settings(), {})
    for role, rendered in zip(roles, sets, strict=True):
        yield _pods_line(role.role, rendered)
    keys = key_templates(job, written).values()
    objects = [*base_objects(job, written), *bindings(job), *keys, *sets]
    names: dict[str, list[str]] = {}
    for one in objects:
        names.setdefault(one["kind"], []).append(one["metadata"]["name"])
    # Its name has a digest of what only the cluster knows, the uid of the job.
    names["ConfigMap"] = [f"{config.name}-config-..."]
    for kind, some in sorted(names.items()):
        yield f"{kind:<20}{', '.join(some)}"
    way = config.spec.scheduling.type
    if gang := GANGS.get(way):
        yield f"and for {way}: {', '.join(gang.kinds)}; it needs {gang.provider}"
    made = f"{len(objects)} objects of the {KIND}"
    yield f"{made}, {sum(len(role.pods) for role in roles)} pods of its StatefulSets"


def _pods_line(role: RoleName, rendered: dict[str, Any]) -> str:
    """`critic  2 pods of 4 CPU, 8 nvidia.com/gpu, memory 64Gi`."""
    replicas = rendered["spec"]["replicas"]
    resources = rendered["spec"]["template"]["spec"]["containers"][0]["resources"]
    limits = dict(resources.get("limits") or {})
    memory = limits.pop("memory", None)
    asked = [f"{resources['requests']['cpu']} CPU"]
    asked += [f"{amount} {name}" for name, amount in limits.items()]
    asked.append(_UNLIMITED if memory is None else f"memory {memory}")
    return f"{role:<13} {counted(replicas, 'pod')} of {', '.join(asked)}"


def memory_lines(config: RunConfig) -> Iterator[str]:
    """What a rank of each role cannot do without, as far as the models lie on this machine."""
    from ppojob_trainer.models.memory import count_parameters, held_by_rank, in_gib

    parameters = count_parameters(config)
    for folder, number in sorted(parameters.items()):
        if not number:
            yield f"not known of {folder}: no weights of it on this machine"
    for role in config.topology.with_own_pods:
        held = held_by_rank(config, role.role, parameters)
        if held:
            unit = "GPU" if role.gpus_per_pod == role.ranks_per_pod else "rank"
            yield f"{role.role:<13} {in_gib(held)} GiB a {unit}"
