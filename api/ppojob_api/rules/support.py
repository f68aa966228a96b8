"""What CEL can say about what this version cannot do yet."""

from ppojob_api.rules.rule import Rule, given

SUPPORT_RULES = (
    Rule(
        "spec.roles",
        f"!{given('rollout')}",
        "pods of its own for generation: not in this version; remove it",
        "rollout",
    ),
    Rule(
        "spec.rollout.parallelism",
        "self.tensor == 1",
        "tensor parallel generation: not in this version; 1",
        "tensor",
    ),
    Rule(
        "spec.rewards[]",
        f"!{given('source')} || !{given('source.configMap')}",
        "code from a ConfigMap: not in this version; source: {path: FILE}",
        "source",
    ),
    Rule(
        "spec.model",
        "!self.trustRemoteCode",
        "code that comes with a model: not in this version; false",
        "trustRemoteCode",
    ),
)
