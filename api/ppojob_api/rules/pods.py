"""What pods may ask of Kubernetes, and who places them."""

from ppojob_api.problem import ReasonCode
from ppojob_api.rules.rule import Rule, given, words
from ppojob_api.v1alpha1.kubernetes_names import LABEL_KEY_PATTERN, LABEL_KEY_WORDS

BARE_RESOURCES = ("cpu", "ephemeral-storage")

_PODS = "spec.pods[]"
_TOLERATION = f"{_PODS}.tolerations[]"
_IS_LABEL_KEY = f"key.matches(r'{LABEL_KEY_PATTERN}')"
_SCHEDULING = "spec.scheduling"

POD_RULES = (
    Rule(
        f"{_PODS}.nodeSelector",
        "",
        f"self.all(key, {_IS_LABEL_KEY})",
        f"it is not the name of a label; {LABEL_KEY_WORDS}",
        ReasonCode.BAD_FORM,
    ),
    Rule(
        f"{_PODS}.resources",
        "",
        f"self.all(key, key in {words(BARE_RESOURCES)}"
        f" || key.contains('/') && !key.startsWith('requests.') && {_IS_LABEL_KEY})",
        f"no container has such a resource; {', '.join(BARE_RESOURCES)}, or a device by DOMAIN/NAME"
        " such as rdma/hca (memory has a field of its own)",
        ReasonCode.BAD_FORM,
    ),
    Rule(
        _TOLERATION,
        "key",
        f"{given('key')} || self.operator == 'Exists'",
        "operator Equal is about one taint; a key, or operator: Exists",
        ReasonCode.REQUIRED,
    ),
    Rule(
        _TOLERATION,
        "value",
        "self.operator == 'Equal'",
        "it has no effect with operator: Exists; remove it, or operator: Equal",
        ReasonCode.NO_EFFECT,
        when=f"{given('value')} && self.value != ''",
    ),
    Rule(
        _TOLERATION,
        "tolerationSeconds",
        f"{given('effect')} && self.effect == 'NoExecute'",
        "only a taint of effect NoExecute ends pods; effect: NoExecute, or remove it",
        when=given("tolerationSeconds"),
    ),
    *(
        Rule(
            _SCHEDULING,
            kind,
            f"self.type == '{kind}'",
            f"it has no effect with another type; remove it, or type: {kind}",
            ReasonCode.NO_EFFECT,
            when=given(kind),
        )
        for kind in ("kueue", "volcano")
    ),
    Rule(
        _SCHEDULING,
        "kueue",
        given("kueue"),
        "type: kueue needs a queue; {queueName: NAME} of a LocalQueue in the job's namespace",
        ReasonCode.REQUIRED,
        when="self.type == 'kueue'",
    ),
)
