"""Rules of pod settings and scheduling."""

from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.section import LABEL_KEY_PATTERN, LABEL_KEY_WORDS

BARE_RESOURCES = ("cpu", "ephemeral-storage")

POD_RULES = rules(
    """
    spec.pods[].nodeSelector | | BadForm
        it is not the name of a label; $LABEL_KEY_WORDS
    must: self.all(key, $IS_LABEL_KEY)

    spec.pods[].resources | | BadForm
        no container has such a resource; $BARE_RESOURCES, or a device by DOMAIN/NAME such as
        rdma/hca (memory has a field of its own)
    must: self.all(key, key in $BARE
        || key.contains('/') && !key.startsWith('requests.') && $IS_LABEL_KEY)

    spec.pods[].tolerations[] | key | Required
        operator Equal is about one taint; a key, or operator: Exists
    must: has(self.key) || has(self.operator) && self.operator == 'Exists'

    spec.pods[].tolerations[] | value | NoEffect
        it has no effect with operator: Exists; remove it, or operator: Equal
    when: self.value != ''
    must: !has(self.operator) || self.operator == 'Equal'

    spec.pods[].tolerations[] | tolerationSeconds | Conflict
        only a taint of effect NoExecute ends pods; effect: NoExecute, or remove it
    must: has(self.effect) && self.effect == 'NoExecute'

    spec.pods[].volumes[] | | Conflict | here
        a volume has one source; exactly one of claimName, configMap and secret
    must: $ONE_OF(claimName configMap secret)

    spec.pods[].env[] | | Conflict | here
        a variable has one source; exactly one of value and secret
    must: $ONE_OF(value secret)

    spec.pods[].env[] | name | Forbidden | here
        names that begin with PPOJOB_ are reserved for the container contract; a name of your own
    must: !self.name.startsWith('PPOJOB_')

    spec.agent.containers | memory | OutOfRange | here
        it is too small for a process; at least 1Mi, such as 2Gi
    must: !self.memory.matches('[0-9mk]$')

    spec.pods[] | memory sharedMemory | OutOfRange | here
        it is too small for a process; at least 1Mi, such as 16Gi
    must: !self.$FIELD.matches('[0-9mk]$')

    spec.scheduling | kueue | Required
        type: kueue needs a queue; {queueName: NAME} of a LocalQueue in the job's namespace
    when: self.type == 'kueue'
    """,
    LABEL_KEY_WORDS=LABEL_KEY_WORDS,
    IS_LABEL_KEY=f"key.matches(r'{LABEL_KEY_PATTERN}')",
    BARE_RESOURCES=", ".join(BARE_RESOURCES),
    BARE=words(BARE_RESOURCES),
)
