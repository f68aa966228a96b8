"""`ppojob plan`: what a manifest would run, with every default written out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ppojob_api import manifest, run_config, validation
from ppojob_api.problem import counted
from ppojob_api.run_config import RunConfig
from ppojob_api.topology import RoleTopology, world_size
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.well_known import KIND, RoleName
from ppojob_cli.job_file import load_job
from ppojob_cli.options import set_option
from ppojob_operator.build.gang import GANGS
from ppojob_operator.build.objects import base_objects, key_templates, role_bindings, stateful_sets
from ppojob_operator.plan import cluster_problems
from ppojob_operator.reading import read_job
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_trainer.models.memory import (
    count_parameters,
    held_by_rank,
    held_in_turns,
    in_gib,
    offloads,
)
from ppojob_trainer.models.weight_files import read_weights
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.trackers.messages import flat


def plan_lines(config: RunConfig) -> Iterator[str]:
    """Format the plan of a run as lines."""
    types = "Types of numbers that are auto: the processors of the pods decide; on this machine"
    resolved = manifest.to_yaml(config.spec.model_dump(mode="json"))
    yield f"PPOJob {config.namespace}/{config.name}, configuration {config.digest()[:12]}"
    for title, lines in (
        ("Roles", role_lines(config)),
        ("One step", _step_lines(config.spec)),
        ("Run", _run_lines(config.spec)),
        (types, _type_lines(config)),
        ("Memory at the least; activations and caches come on top", memory_lines(config)),
        ("On a cluster", cluster_lines(config)),
        ("Resolved spec", resolved.splitlines()),
    ):
        indented = [f"  {line}" for line in lines]
        if indented or title != types:
            yield from ("", title, *indented)


def role_lines(config: RunConfig) -> Iterator[str]:
    """Describe the roles of a run: pods, ranks, threads or GPUs, and parallelism."""
    settings = config.spec.roles.model_dump(mode="json")
    for role in config.topology.roles:
        layout = (settings.get(role.role) or {}).get("parallelism", {})
        words = [
            f"{word} {layout[word]}"
            for word in ("pipeline", "tensor", "sequence", "expert")
            if layout.get(word, 1) > 1
        ]
        is_generating = role == config.topology.generating and config.spec.rollout.replay is None
        if is_generating and config.spec.rollout.max_staleness:
            drawn = "round" if config.spec.algorithm.dynamic_sampling else "step"
            words.append(f"at most {counted(config.spec.rollout.max_staleness, drawn)} ahead")
        yield _role_line(role, words)
    if config.topology.total_gpus:
        yield f"{counted(config.topology.total_gpus, 'GPU')} in all"
    engines, ranks = config.spec.rollout.parallelism.data, config.spec.rollout.parallelism.tensor
    if engines is not None and ranks > 1:
        role = config.topology.generating
        pods = ranks // role.ranks_per_pod
        over = f" over {pods} pods" if pods > 1 else ""
        yield f"{counted(engines, 'engine')} in {role.role}, {ranks} ranks each{over}"


def _role_line(role: RoleTopology, layout: Sequence[str]) -> str:
    if role.colocated_with is not None:
        ranks = counted(role.world_size, "rank")
        return f"{role.role:<13} in the {ranks} of {role.colocated_with}"
    parts = [
        counted(len(role.pods), "pod"),
        f"{counted(role.ranks_per_pod, 'rank')} each",
        f"{counted(role.threads_per_rank, 'thread')} a rank",
        counted(role.gpus_per_pod, "GPU") + " a pod" if role.gpus_per_pod else "CPU",
        *layout,
    ]
    last = f" ... {role.pods[-1].host}" if len(role.pods) > 1 else ""
    return f"{role.role:<13} {', '.join(parts)}: {role.pods[0].host}{last}"


def _step_lines(spec: PPOJobSpec) -> Iterator[str]:
    algorithm, data = spec.algorithm, spec.data
    responses = algorithm.prompts_per_step * algorithm.samples_per_prompt
    if algorithm.given:
        twice = ", each prompt also with the answer to another" if algorithm.has_mismatched else ""
        yield f"{counted(responses, unit(spec))} with answers, which are trained on{twice}"
    else:
        yield (
            f"{counted(algorithm.prompts_per_step, 'prompt')} x "
            f"{counted(algorithm.samples_per_prompt, 'sample')} = "
            f"{counted(responses, 'response')}, "
            f"at most {responses * data.max_response_tokens} response tokens"
        )
        if (rounds := algorithm.dynamic_sampling) is not None:
            yield (
                f"rounds of {counted(algorithm.draw[1], 'prompt')}, at most {rounds.max_rounds}, "
                f"until {algorithm.prompts_per_step} are kept by {rounds.metric}"
            )
        if (guidance := algorithm.guidance) is not None:
            given = counted(guidance.samples, "sample")
            yield f"at most {given} of each prompt from the data, the others drawn"
        if (kept := algorithm.group_filter) is not None:
            yield f"{kept.keep} responses to each prompt are trained on, chosen by {kept.metric}"
        if algorithm.estimator.has_pairs:
            yield "the best and the worst response of each prompt are a pair, which is trained on"
    yield from _supervised(spec)
    prompts = algorithm.prompts_per_step
    part = algorithm.mini_batch_prompts or prompts
    updates = _updates(counted(part, unit(spec)), prompts // part, algorithm.epochs)
    critic = spec.critic
    if critic is None:
        yield updates
    else:
        yield f"policy: {updates}"
        part, epochs = critic.mini_batch_prompts or prompts, critic.epochs or algorithm.epochs
        yield f"critic: {_updates(counted(part, 'prompt'), prompts // part, epochs)}"
    prompt_and_response = data.max_prompt_tokens + data.max_response_tokens
    ranks = spec.roles.actor_rollout.parallelism.sequence
    shared = f", {spec.training.micro_batch_tokens} for each of {ranks} ranks" if ranks > 1 else ""
    yield (
        f"micro-batches of {ranks * spec.training.micro_batch_tokens} tokens{shared}; "
        f"the longest prompt and response take {prompt_and_response}"
    )
    yield from _teacher_prompts(spec)
    yield from _whole_groups(spec)
    yield from _waiting_stages(spec)


def _supervised(spec: PPOJobSpec) -> Iterator[str]:
    if (own := spec.supervised) is None:
        return
    rows = counted(own.rows_per_step or 0, "demonstration")
    yield f"{rows} parted over the optimizer steps of the policy"
    weight = f"their loss counts {own.coefficient:g} times"
    if own.warmup_steps:
        weight += f", from 0 on over {counted(own.warmup_steps, 'step')}"
    if own.schedule != "constant":
        weight += (
            f", and falls ({own.schedule}) to {own.min_coefficient:g} by step {own.decay_steps}"
        )
    policy = "; that of the policy by what is left to 1" if own.interpolate else ""
    yield f"{weight}{policy}"


def _teacher_prompts(spec: PPOJobSpec) -> Iterator[str]:
    data, shown = spec.data, spec.algorithm.reprompt
    if data.max_teacher_prompt_tokens is None:
        return
    longest = data.max_teacher_prompt_tokens + data.max_response_tokens
    of = f"column {data.teacher_prompt_key}"
    if shown is not None:
        feedback = "" if shown.feedback_key is None else f", and of {shown.feedback_key}"
        of = f"responses that score {shown.min_score:g} or more{feedback}"
    yield (
        f"the reference reads a prompt of its own before each response, of {of}: "
        f"the longest prompt and response take {longest}"
    )


def _whole_groups(spec: PPOJobSpec) -> Iterator[str]:
    """Warn of groups in one micro-batch that may exceed its tokens."""
    algorithm, data, training = spec.algorithm, spec.data, spec.training
    if not algorithm.whole_groups:
        return
    is_pair = algorithm.estimator.has_pairs or algorithm.given
    rows = 2 if is_pair else algorithm.samples_per_prompt
    prompts = 1 if training.share_prompts else rows
    tokens = prompts * data.max_prompt_tokens + rows * data.max_response_tokens
    if tokens > spec.roles.actor_rollout.parallelism.sequence * training.micro_batch_tokens:
        yield (
            f"the loss compares {rows} responses to a prompt, which are in one micro-batch: up to "
            f"{tokens} tokens"
        )


def _waiting_stages(spec: PPOJobSpec) -> Iterator[str]:
    """Warn of idle pipeline stages, if all rows fit into one micro-batch."""
    algorithm, data, pods = spec.algorithm, spec.data, spec.roles.actor_rollout
    layout = pods.parallelism
    if layout.pipeline == 1:
        return
    coordinates = world_size(pods) // (layout.pipeline * layout.tensor * layout.sequence)
    prompts = -(-(algorithm.mini_batch_prompts or algorithm.prompts_per_step) // coordinates)
    rows = prompts * max(algorithm.samples_per_prompt, algorithm.answers_per_row)
    tokens = rows * (data.max_prompt_tokens + data.max_response_tokens)
    if tokens <= layout.sequence * spec.training.micro_batch_tokens:
        yield (
            f"a mini-batch is one micro-batch: one of {layout.pipeline} pipeline stages computes "
            "at a time; a smaller training.microBatchTokens has them compute together"
        )


def unit(spec: PPOJobSpec) -> str:
    """Return the unit of a step: prompt, row or pair."""
    if not spec.algorithm.given:
        return "prompt"
    return "pair" if spec.algorithm.answers_per_row == 2 else "row"


def _updates(part: str, mini_batches: int, epochs: int) -> str:
    return (
        f"{counted(mini_batches, 'mini-batch', 'mini-batches')} of {part} x "
        f"{counted(epochs, 'epoch')} = {counted(mini_batches * epochs, 'optimizer step')}"
    )


def _run_lines(spec: PPOJobSpec) -> Iterator[str]:
    steps, algorithm = spec.steps, spec.algorithm
    if not steps.trains:
        work = "responses to the held-out prompts, and nothing is scored or trained"
        idle = "" if spec.data.sampler is None else ": data.sampler chooses no rows"
        yield f"{work if steps.generate_only else 'one validation, and nothing is trained'}{idle}"
        return
    if steps.total is not None:
        prompts = steps.total * algorithm.prompts_per_step
        responses = prompts * algorithm.samples_per_prompt
        drawn = counted(prompts, unit(spec))
        if not algorithm.given:
            drawn += f", {counted(responses, 'response')}"
        yield f"{counted(steps.total, 'step')}: {drawn}"
    else:
        yield f"{counted(steps.epochs or 0, 'pass', 'passes')} over the training data"
    if spec.critic is not None and spec.critic.warmup_steps:
        yield f"warm-up: {counted(spec.critic.warmup_steps, 'step')} train the critic alone"
    times = [
        "before the first step" if steps.validate_first else "",
        f"every {counted(steps.validate_every, 'step')}" if steps.validate_every else "",
        "after the last step" if steps.validate_last else "",
    ]
    validation = ", ".join(time for time in times if time) if spec.data.validation else ""
    yield f"validation: {validation or 'never'}"
    every = spec.checkpoint.every
    written = ", written asynchronously" if spec.checkpoint.background else ""
    on_the_way = f"every {counted(every, 'step')}{written}, " if every else ""
    best = spec.checkpoint.best
    kept = f", and the one of {best.mode} {best.metric}" if best is not None else ""
    newest = f"the newest {spec.checkpoint.keep_last} are kept"
    copied = f", and copied to {target}" if (target := spec.checkpoint.copy_to) else ""
    yield f"checkpoints: {on_the_way}after the last step; {newest}{kept}{copied}"


def _type_lines(config: RunConfig) -> Iterator[str]:
    """What the types become on this machine that the configuration leaves to the processor."""
    native = has_native_bfloat16()
    here = flat(config.on_processor(native_bfloat16=native).spec.model_dump(mode="json"))
    why = f"{'native' if native else 'no native'} bfloat16"
    for name, old in flat(config.spec.model_dump(mode="json")).items():
        is_unused = name == "rollout.dtype" and config.spec.algorithm.given
        if old != here[name] and not is_unused:
            yield f"{name}: {here[name]} ({why})"


def cluster_lines(config: RunConfig) -> Iterator[str]:
    """The pods with what they ask for, and every object by its name; or why there are none."""
    manifest = config.job()
    defaults = Settings()
    problems = cluster_problems(manifest, defaults)
    if problems:
        yield "no objects: an operator refuses this file"
        yield from map(str, problems)
        return
    stored = manifest.model_dump(mode="json", exclude_none=True)
    stored["metadata"] |= {"resourceVersion": "", "creationTimestamp": "1970-01-01T00:00:00Z"}
    job = read_job(stored)
    written, roles = pod_config(job, manifest), config.topology.with_own_pods
    sets = stateful_sets(job, written, roles, defaults, {})
    for role, rendered in zip(roles, sets, strict=True):
        yield _pods_line(role.role, rendered)
    keys = key_templates(job, written).values()
    bindings = role_bindings(job, written, defaults)
    objects = [*base_objects(job, written), *bindings, *keys, *sets]
    names: dict[str, list[str]] = {}
    for one in objects:
        names.setdefault(one["kind"], []).append(one["metadata"]["name"])
    # Its name has a digest of what only the cluster knows, the uid of the job.
    names["ConfigMap"] = [f"{config.name}-config-..."]
    width = max(map(len, names)) + 1
    for kind, some in sorted(names.items()):
        yield f"{kind:<{width}}{', '.join(some)}"
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
    asked.append(f"memory {memory or 'without limit'}")
    return f"{role:<13} {counted(replicas, 'pod')} of {', '.join(asked)}"


def memory_lines(config: RunConfig) -> Iterator[str]:
    """Describe the minimum memory of a rank of each role, if its models are on this machine."""
    parameters = count_parameters(config)
    for folder, number in sorted(parameters.items()):
        if not number:
            yield f"not known of {folder}: no weights of it on this machine"
        elif form := read_weights(Path(folder)).form:
            yield f"{folder} holds {form} weights, which are dequantised while they are loaded"
    for role in config.topology.with_own_pods:
        held = held_by_rank(config, role.role, parameters)
        if not held:
            continue
        unit = "GPU" if role.gpus_per_pod == role.ranks_per_pod else "rank"
        if not offloads(config, role.role):
            yield f"{role.role:<13} {in_gib(held)} GiB a {unit}"
            continue
        yield f"{role.role:<13} {in_gib(held)} GiB a {unit}, some in host memory; on the {unit}:"
        for worker, there in held_in_turns(config, role.role, parameters).items():
            yield f"{'':<13} {in_gib(there)} GiB while the {worker} works"


@click.command("plan")
@click.argument("file", metavar="FILE")
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print the run configuration as JSON.")
def plan(file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Show roles, ranks, memory, objects and every default of FILE.

    FILE is - for standard input. It starts nothing, contacts no cluster, and of models reads only
    the sizes of their weights.
    """
    job = load_job(file, overrides)
    for problem in validation.warnings(job):
        click.echo(f"warning: {problem}", err=True)
    config = run_config.resolve(job)
    if as_json:
        click.echo(config.to_json().decode("ascii"))
        return
    for line in plan_lines(config):
        click.echo(line)
