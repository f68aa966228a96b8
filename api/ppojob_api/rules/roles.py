"""Pods of roles: ranks, cores, GPUs, and the prompts that ranks need."""

from ppojob_api.problem import ReasonCode
from ppojob_api.rules.rule import Rule, either, given, present, untouched
from ppojob_api.v1alpha1.roles import RolePods

MODEL_ROLES = ("actorRollout", "reference", "critic", "rewardModel")
_GUESTS = MODEL_ROLES[1:]

_NOT_YET = ReasonCode.NOT_IN_THIS_VERSION
_OUT_OF_RANGE = ReasonCode.OUT_OF_RANGE
_PROMPTS = "algorithm.promptsPerStep"
_PART = "algorithm.miniBatchPrompts"
_CRITIC_PART = "critic.miniBatchPrompts"


def _ranks_of_pod(at: str) -> str:
    gpus = f"self.{at}gpusPerReplica"
    return either(f"{at}ranksPerReplica", f"({gpus} > 0 ? {gpus} : 1)")


def _ranks(role: str) -> str:
    """CEL for the number of ranks of a role in pods of its own."""
    return f"self.roles.{role}.replicas * {_ranks_of_pod(f'roles.{role}.')}"


def _in_own_pods(role: str) -> str:
    return f"{given(f'roles.{role}')} && self.roles.{role}.colocateWith == 'none'"


def _pod_rules(role: str) -> tuple[Rule, ...]:
    section = f"spec.roles.{role}"
    threads = f"{_ranks_of_pod('')} * {either('threadsPerRank', '1')}"
    ranks = f"self.replicas * {_ranks_of_pod('')}"
    return (
        Rule(
            section,
            "cpu",
            f"self.cpu >= {threads}",
            "threads would share cores; at least the ranks of a pod times threadsPerRank"
            f" ${{{threads}}}, or fewer threadsPerRank",
            when=given("cpu"),
            at_admission=False,
        ),
        Rule(
            section,
            "ranksPerReplica",
            "self.ranksPerReplica == self.gpusPerReplica",
            "a GPU holds one rank; as many as gpusPerReplica ${self.gpusPerReplica}, or remove it",
            when=f"self.gpusPerReplica > 0 && {given('ranksPerReplica')}",
        ),
        Rule(
            section,
            "parallelism.tensor",
            "self.parallelism.tensor == 1",
            "tensor parallel training: not in this version; 1",
            _NOT_YET,
        ),
        Rule(
            section,
            "parallelism.dataShard",
            f"self.parallelism.dataShard == {ranks}",
            "other shards than one a rank: not in this version; remove it, or as many as ranks"
            f" ${{{ranks}}}",
            _NOT_YET,
            when=given("parallelism.dataShard"),
        ),
    )


def _prompts(field: str, role: str, when: str, *, at_admission: bool = True) -> Rule:
    """A group is whole on one rank, so a batch of fewer prompts would leave ranks idle."""
    return Rule(
        "spec",
        field,
        f"self.{field} >= {_ranks(role)}",
        f"each rank of roles.{role} takes whole prompts; at least as many as its ranks"
        f" ${{{_ranks(role)}}}",
        _OUT_OF_RANGE,
        when=when,
        at_admission=at_admission,
    )


_CRITIC_IN_OWN_PODS = _in_own_pods("critic")
_CRITIC_PROMPTS = (
    _prompts(field, role, when, at_admission=False)
    for field, role, when in (
        (_PART, "critic", f"{_CRITIC_IN_OWN_PODS} && {given(_PART)} && !({present(_CRITIC_PART)})"),
        (_CRITIC_PART, "critic", f"{_CRITIC_IN_OWN_PODS} && {present(_CRITIC_PART)}"),
        (_CRITIC_PART, "actorRollout", f"!({_CRITIC_IN_OWN_PODS}) && {present(_CRITIC_PART)}"),
    )
)

ROLE_RULES = (
    *(rule for role in MODEL_ROLES for rule in _pod_rules(role)),
    *(
        Rule(
            f"spec.roles.{role}",
            "",
            untouched(RolePods),
            "settings of pods have no effect in the pods of another role; remove them, or"
            " colocateWith: none for pods of its own",
            ReasonCode.NO_EFFECT,
            when="self.colocateWith != 'none'",
        )
        for role in _GUESTS
    ),
    _prompts(_PROMPTS, "actorRollout", ""),
    *(_prompts(_PROMPTS, role, _in_own_pods(role)) for role in _GUESTS),
    _prompts(_PART, "actorRollout", given(_PART)),
    *_CRITIC_PROMPTS,
    Rule(
        "spec",
        "rollout.parallelism.data",
        f"self.rollout.parallelism.data == {_ranks('actorRollout')}",
        "each rank of roles.actorRollout holds one engine; as many as its ranks"
        f" ${{{_ranks('actorRollout')}}}, or remove it",
        when=given("rollout.parallelism.data"),
    ),
    Rule(
        "spec",
        "roles.rewardModel",
        given("rewardModel"),
        "it has no effect without rewardModel; remove it, or give rewardModel",
        ReasonCode.NO_EFFECT,
        when=given("roles.rewardModel"),
    ),
    Rule(
        "spec.roles",
        "rollout",
        f"!{given('rollout')}",
        "pods of its own for generation: not in this version; remove it",
        _NOT_YET,
    ),
)
