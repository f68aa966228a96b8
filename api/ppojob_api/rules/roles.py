"""Pods of roles: ranks, cores, GPUs, and the prompts that ranks need."""

from ppojob_api.rules.policy_loss import COMPARE_GROUPS
from ppojob_api.rules.rule import either, present, rules, words
from ppojob_api.shape import members
from ppojob_api.v1alpha1.roles import RolePods

MODEL_ROLES = ("actorRollout", "reference", "critic", "rewardModel")
_HOSTED = MODEL_ROLES[1:]


def _ranks_of_pod(at: str = "") -> str:
    gpus = f"self.{at}gpusPerReplica"
    return either(f"{at}ranksPerReplica", f"({gpus} > 0 ? {gpus} : 1)")


def _ranks(role: str) -> str:
    """CEL for the number of ranks of a role in pods of its own."""
    return f"self.roles.{role}.replicas * {_ranks_of_pod(f'roles.{role}.')}"


def _coordinates(role: str) -> str:
    """CEL for how many of these have rows that the others do not have."""
    layout = f"self.roles.{role}.parallelism"
    return f"{_ranks(role)} / ({layout}.sequence * {layout}.tensor * {layout}.pipeline)"


def _in_own_pods(role: str) -> str:
    return f"has(self.roles.{role}) && self.roles.{role}.colocateWith == 'none'"


_OWN_RANKS = f"self.replicas * {_ranks_of_pod()}"
_WITHIN = "(self.parallelism.sequence * self.parallelism.tensor * self.parallelism.pipeline)"

# A batch that is too small would leave ranks idle in updates, also in parts of groups. The batches:
# the field, the role that it is dealt to, when, and whether an API server looks at it. They go to
# ranks that share rows as to one. Given answers are one sample a prompt, so a pair stays whole.
_PROMPTS, _PART = "algorithm.promptsPerStep", "algorithm.miniBatchPrompts"
_CRITIC_PART, _CRITIC_IN_OWN_PODS = "critic.miniBatchPrompts", _in_own_pods("critic")
_HAS_CRITIC_PART = present(_CRITIC_PART)
_TRAINED = (
    (_PROMPTS, "actorRollout", f"has(self.{_PROMPTS})", ""),
    *((_PROMPTS, role, _in_own_pods(role), "") for role in _HOSTED[:2]),
    (_PART, "actorRollout", f"has(self.{_PART})", ""),
    (
        _PART,
        "critic",
        f"{_CRITIC_IN_OWN_PODS} && has(self.{_PART}) && !({_HAS_CRITIC_PART})",
        " | here",
    ),
    (_CRITIC_PART, "critic", f"{_CRITIC_IN_OWN_PODS} && {_HAS_CRITIC_PART}", " | here"),
    (_CRITIC_PART, "actorRollout", f"!({_CRITIC_IN_OWN_PODS}) && {_HAS_CRITIC_PART}", " | here"),
)

_GENERATING = (
    ("actorRollout", "!has(self.roles.rollout)"),
    ("rollout", "has(self.roles.rollout)"),
)

# What trains adapters, and the pods that it lives in.
_ADAPTED = (
    ("model", "actorRollout", "true"),
    ("critic", "critic", _CRITIC_IN_OWN_PODS),
    ("critic", "actorRollout", f"!({_CRITIC_IN_OWN_PODS})"),
)

# Rows and weights go from GPU to GPU, or from processor to processor.
_CHANNELS = (("rollout", "has(self.roles.rollout)"), *((r, _in_own_pods(r)) for r in _HOSTED[:2]))

ROLE_RULES = (
    *rules(
        """
        spec | roles.$ROLE.gpusPerReplica | Conflict
            rows and weights move between GPUs or between CPUs, not across; GPUs in
            roles.actorRollout and here, or in neither
        when: $WHEN
        must: (self.$FIELD > 0) == (self.roles.actorRollout.gpusPerReplica > 0)
        """,
        each=({"ROLE": role, "WHEN": when} for role, when in _CHANNELS),
    ),
    *rules(
        """
        spec | $BATCH | OutOfRange$HERE
            each data-parallel rank of roles.$ROLE needs at least one response; times
            samplesPerPrompt at least as many as data-parallel ranks ${$PARTS}
        when: $WHEN
        must: self.$FIELD * self.algorithm.samplesPerPrompt >= $PARTS
        """,
        each=(
            {"BATCH": field, "ROLE": role, "PARTS": _coordinates(role), "WHEN": when, "HERE": here}
            for field, role, when, here in _TRAINED
        ),
    ),
    *rules(
        """
        spec | $BATCH | OutOfRange
            the loss compares the responses of a prompt, so each data-parallel rank of
            roles.actorRollout needs a prompt; at least as many as data-parallel ranks ${$PARTS}
        when: ($DRAWN_PAIRS || self.algorithm.policyLoss.type in $COMPARE_GROUPS) $GIVEN
        must: self.$BATCH >= $PARTS
        """,
        each=(
            {"BATCH": field, "GIVEN": given, "PARTS": _coordinates("actorRollout")}
            for field, given in (
                ("algorithm.promptsPerStep", ""),
                (
                    "algorithm.miniBatchPrompts",
                    "&& has(self.algorithm.miniBatchPrompts)",
                ),
            )
        ),
        DRAWN_PAIRS="self.algorithm.type == 'online_dpo'",
        COMPARE_GROUPS=words(COMPARE_GROUPS),
    ),
    *rules(
        """
        spec | roles.actorRollout.parallelism.$WAY | NotInThisVersion | here
            with model.mtp: not in this version; 1, or no model.mtp
        when: has(self.model.mtp)
        """,
        each=({"WAY": way} for way in ("sequence", "tensor", "pipeline", "expert")),
    ),
    *rules(
        """
        spec | $MODEL.lora.baseType | NotInThisVersion | here
            with tensor parallelism in roles.$ROLE: not in this version; remove it, or tensor: 1
        when: $LIVES_THERE
        must: self.roles.$ROLE.parallelism.tensor == 1
        """,
        each=(
            {"MODEL": model, "ROLE": role, "LIVES_THERE": where}
            for model, role, where in (
                *_ADAPTED,
                ("model", "reference", f"!has(self.reference) && {_in_own_pods('reference')}"),
            )
        ),
    ),
    *rules(
        """
        spec | roles.$ROLE.offload | Conflict
            offloading activations needs activation checkpointing; without activations, or
            training.activationCheckpointing: true
        when: $HAS_ROLE && 'activations' in self.$FIELD
        must: self.training.activationCheckpointing
        """,
        each=(
            {"ROLE": "actorRollout", "HAS_ROLE": "true"},
            {"ROLE": "critic", "HAS_ROLE": "has(self.roles.critic)"},
        ),
    ),
    *rules(
        """
        spec | roles.reference.offload | NoEffect
            with model.lora it is the base weights; remove it, or roles.actorRollout.offload
        when: has(self.model.lora) && !has(self.model.lora.modulesToSave) && !has(self.reference)
            && has(self.roles.reference) && self.roles.reference.colocateWith != 'none'

        $DEVICES | cpu | Conflict | here
            threads would share cores; at least ranks x threadsPerRank ${$THREADS}, or fewer threads
        must: self.cpu >= $THREADS

        $DEVICES | ranksPerReplica | Conflict
            a GPU holds one rank; as many as gpusPerReplica ${self.gpusPerReplica}, or remove it
        when: self.gpusPerReplica > 0 && has(self.ranksPerReplica)
        must: self.ranksPerReplica == self.gpusPerReplica

        $MODELS | parallelism.tensor | Conflict
            it does not divide the ranks of the role; a divisor of replicas times ranksPerReplica
            ${$OWN_RANKS}
        must: $OWN_RANKS % self.parallelism.tensor == 0

        $MODELS | parallelism.sequence | Conflict
            sequence x tensor does not divide the ranks; a product that divides them ${$OWN_RANKS}
        when: self.parallelism.sequence > 1 && $OWN_RANKS % self.parallelism.tensor == 0
        must: $OWN_RANKS % $ALIKE == 0

        $MODELS | parallelism.pipeline | Conflict
            pipeline x sequence x tensor does not divide the ranks; a product that divides them
            ${$OWN_RANKS}
        when: self.parallelism.pipeline > 1 && $OWN_RANKS % $ALIKE == 0
        must: $OWN_RANKS % $WITHIN == 0

        $MODELS | parallelism.dataShard | Conflict
            it does not divide the data-parallel ranks ${$OWN_RANKS / $WITHIN}; a divisor, or none
        when: $OWN_RANKS % $WITHIN == 0
        must: $OWN_RANKS / $WITHIN % self.parallelism.dataShard == 0

        $MODELS | parallelism.expert | Conflict
            expert parallelism splits the ranks of one model copy; a number that divides dataShard x
            sequence x tensor ${$SHARDS * $ALIKE}
        when: self.parallelism.expert > 1 && $OWN_RANKS % $WITHIN == 0
        must: $SHARDS * $ALIKE % self.parallelism.expert == 0

        $HOSTED | | NoEffect
            pod settings have no effect in another role's pods; remove them, or colocateWith: none
        when: self.colocateWith != 'none'
        must: $UNSET($POD_FIELDS)

        spec | roles.rewardModel | NoEffect
            it has no effect without rewardModel; remove it, or give rewardModel
        must: has(self.rewardModel)
        """,
        DEVICES=" ".join(f"spec.roles.{role}" for role in (*MODEL_ROLES, "rollout")),
        MODELS=" ".join(f"spec.roles.{role}" for role in MODEL_ROLES),
        HOSTED=" ".join(f"spec.roles.{role}" for role in _HOSTED),
        OWN_RANKS=_OWN_RANKS,
        ALIKE="(self.parallelism.sequence * self.parallelism.tensor)",
        WITHIN=_WITHIN,
        SHARDS=either("parallelism.dataShard", f"{_OWN_RANKS} / {_WITHIN}"),
        THREADS=f"{_ranks_of_pod()} * {either('threadsPerRank', '1')}",
        POD_FIELDS=" ".join(members(RolePods)),
    ),
    *rules(
        """
        spec | rollout.parallelism.tensor | Conflict
            an engine takes a part of a pod of roles.$ROLE, or several whole pods; a number that
            divides the ranks of a pod ${$OF_POD}, or a multiple of them that divides all ranks
            ${$RANKS}
        when: $WHEN
        must: $OF_POD % self.rollout.parallelism.tensor == 0
            || self.rollout.parallelism.tensor % ($OF_POD) == 0
            && $RANKS % self.rollout.parallelism.tensor == 0

        spec | rollout.drafts | NotInThisVersion | here
            on the GPUs of roles.$ROLE vLLM samples other tokens with speculative decoding: not in
            this version; remove it, or gpusPerReplica: 0
        when: $WHEN
        must: self.roles.$ROLE.gpusPerReplica == 0

        spec | rollout.parallelism.data | Conflict
            the ranks of roles.$ROLE hold another number of engines; as many as its ranks over
            tensor ${$RANKS / self.rollout.parallelism.tensor}, or remove it
        when: $WHEN && has(self.rollout.parallelism.data)
        must: self.rollout.parallelism.data == $RANKS / self.rollout.parallelism.tensor
        """,
        each=(
            {
                "ROLE": role,
                "WHEN": when,
                "RANKS": _ranks(role),
                "OF_POD": _ranks_of_pod(f"roles.{role}."),
            }
            for role, when in _GENERATING
        ),
    ),
)
