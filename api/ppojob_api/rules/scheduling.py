"""What CEL can say about who places the pods."""

from ppojob_api.rules.rule import Rule, given, implies

SCHEDULING_RULES = (
    *(
        Rule(
            "spec.scheduling",
            implies(given(kind), f"self.type == '{kind}'"),
            f"it has no effect with another type; remove it, or type: {kind}",
            kind,
        )
        for kind in ("kueue", "volcano")
    ),
    Rule(
        "spec.scheduling",
        implies("self.type == 'kueue'", given("kueue")),
        "type: kueue needs a queue; {queueName: NAME} of a LocalQueue in the job's namespace",
        "kueue",
    ),
    Rule(
        "spec.scheduling",
        "self.type == oldSelf.type",
        "pods that were placed in one way cannot join a gang of another; make a job of another"
        " name",
        "type",
    ),
)
