"""What CEL can say about pods: names within maps, and how the parts of a toleration go together."""

from ppojob_api.checks.pod_forms import BARE_RESOURCES
from ppojob_api.rules.rule import Rule, given, implies, words
from ppojob_api.v1alpha1.kubernetes_names import LABEL_KEY_PATTERN, LABEL_KEY_WORDS

_PODS = "spec.pods[]"
_TOLERATION = f"{_PODS}.tolerations[]"
_IS_LABEL_KEY = f"key.matches(r'{LABEL_KEY_PATTERN}')"

POD_RULES = (
    Rule(
        f"{_PODS}.nodeSelector",
        f"self.all(key, {_IS_LABEL_KEY})",
        f"a key is not the name of a label; {LABEL_KEY_WORDS}",
    ),
    Rule(
        f"{_PODS}.resources",
        f"self.all(key, key in {words(frozenset(BARE_RESOURCES))}"
        f" || key.contains('/') && !key.startsWith('requests.') && {_IS_LABEL_KEY})",
        f"no container has such a resource; {', '.join(BARE_RESOURCES)}, or a device by DOMAIN/NAME"
        " (memory has a field of its own)",
    ),
    Rule(
        _TOLERATION,
        f"{given('key')} || self.operator == 'Exists'",
        "operator Equal is about one taint; a key, or operator: Exists",
        "key",
    ),
    Rule(
        _TOLERATION,
        implies(f"{given('value')} && self.value != ''", "self.operator == 'Equal'"),
        "it has no effect with operator: Exists; remove it, or operator: Equal",
        "value",
    ),
    Rule(
        _TOLERATION,
        implies(given("tolerationSeconds"), f"{given('effect')} && self.effect == 'NoExecute'"),
        "only a taint of effect NoExecute ends pods; effect: NoExecute, or remove it",
        "tolerationSeconds",
    ),
)
