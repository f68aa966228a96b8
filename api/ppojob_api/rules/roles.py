"""What CEL can say about roles: pods, ranks, GPUs, and the prompts that ranks need."""

from ppojob_api.checks.check import MODEL_ROLES
from ppojob_api.rules.rule import Rule, given, implies, untouched
from ppojob_api.v1alpha1.roles import RolePods

_GUESTS = MODEL_ROLES[1:]


def _ranks(role: str = "") -> str:
    """CEL for the number of ranks of the role at a path inside `self`."""
    at = f"{role}." if role else ""
    each = f"(self.{at}gpusPerReplica > 0 ? self.{at}gpusPerReplica : 1)"
    return (
        f"self.{at}replicas * ({given(f'{at}ranksPerReplica')} ? self.{at}ranksPerReplica : {each})"
    )


def _pod_rules(role: str) -> tuple[Rule, ...]:
    path = f"spec.roles.{role}"
    return (
        Rule(
            path,
            implies(
                f"self.gpusPerReplica > 0 && {given('ranksPerReplica')}",
                "self.ranksPerReplica == self.gpusPerReplica",
            ),
            "a GPU holds one rank; as many as gpusPerReplica, or remove it",
            "ranksPerReplica",
        ),
        Rule(
            path,
            "self.parallelism.tensor == 1",
            "tensor parallel training: not in this version; parallelism.tensor: 1",
        ),
        Rule(
            path,
            implies(given("parallelism.dataShard"), f"self.parallelism.dataShard == {_ranks()}"),
            "other shards than one a rank: not in this version; remove parallelism.dataShard",
        ),
    )


def _guest_rules(role: str) -> tuple[Rule, ...]:
    own = f"{given(f'roles.{role}')} && self.roles.{role}.colocateWith == 'none'"
    return (
        Rule(
            f"spec.roles.{role}",
            implies("self.colocateWith != 'none'", untouched(RolePods)),
            "settings of pods have no effect in the pods of another role; remove them, or"
            " colocateWith: none for pods of its own",
        ),
        Rule(
            "spec",
            implies(own, f"self.algorithm.promptsPerStep >= {_ranks(f'roles.{role}')}"),
            f"each rank of roles.{role} takes whole prompts; algorithm.promptsPerStep of at least"
            " its ranks",
        ),
    )


ROLE_RULES = (
    *(rule for role in MODEL_ROLES for rule in _pod_rules(role)),
    *(rule for role in _GUESTS for rule in _guest_rules(role)),
    Rule(
        "spec",
        f"{_ranks('roles.actorRollout')}"
        f" <= ({given('algorithm.miniBatchPrompts')} ? self.algorithm.miniBatchPrompts"
        " : self.algorithm.promptsPerStep)",
        "each rank of roles.actorRollout takes whole prompts; algorithm.promptsPerStep and"
        " miniBatchPrompts of at least its ranks",
    ),
    Rule(
        "spec",
        implies(
            given("rollout.parallelism.data"),
            f"self.rollout.parallelism.data == {_ranks('roles.actorRollout')}",
        ),
        "each rank of roles.actorRollout holds one engine; remove rollout.parallelism.data",
    ),
)
