"""What an API server would refuse in a pod, and sizes that no process could start with.

The operator would try for ever to have such a pod made, so a job that asks for one is refused. The
rules are those of k8s.io/kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator

from ppojob_api.checks.check import Check, bad_form, conflict, no_effect, out_of_range
from ppojob_api.checks.pods import all_settings
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.kubernetes_names import LABEL_KEY_WORDS, is_device, is_label_key

BARE_RESOURCES = ("cpu", "ephemeral-storage")
_STORAGE = BARE_RESOURCES[1]
_RESOURCES = f"{', '.join(BARE_RESOURCES)}, or a device by DOMAIN/NAME, such as rdma/hca"


def node_labels(job: PPOJob) -> Iterator[Problem]:
    """A label that no node can have."""
    for where, settings in all_settings(job):
        for key in settings.node_selector:
            if not is_label_key(key):
                why = "it is not the name of a label"
                yield bad_form(f"{where}.nodeSelector", key, why, LABEL_KEY_WORDS)


def tolerations(job: PPOJob) -> Iterator[Problem]:
    """Parts of a toleration that do not go together (`ValidateTolerations`)."""
    for where, settings in all_settings(job):
        for index, one in enumerate(settings.tolerations):
            place = f"{where}.tolerations[{index}]"
            if one.key is None and one.operator == "Equal":
                why, allowed = "operator Equal is about one taint", "a key, or operator: Exists"
                yield Problem(f"{place}.key", ABSENT, why, allowed, ReasonCode.REQUIRED)
            if one.value and one.operator == "Exists":
                allowed = "remove it, or operator: Equal"
                yield no_effect(f"{place}.value", one.value, "with operator: Exists", allowed)
            if one.toleration_seconds is not None and one.effect != "NoExecute":
                seconds, why = one.toleration_seconds, "only a taint of effect NoExecute ends pods"
                allowed = "effect: NoExecute, or remove it"
                yield conflict(f"{place}.tolerationSeconds", seconds, why, allowed)


def resources(job: PPOJob) -> Iterator[Problem]:
    """Resources that a container cannot have, and parts of devices."""
    for where, settings in all_settings(job):
        gpu = settings.gpu_resource
        if gpu is not None and not is_device(gpu):
            allowed = "DOMAIN/NAME, such as nvidia.com/gpu"
            yield bad_form(f"{where}.gpuResource", gpu, "it is no device", allowed)
        for name, quantity in settings.resources.items():
            place = f"{where}.resources"
            if name == "memory":
                why, allowed = "it has a field of its own", f"{where}.memory"
                yield Problem(place, shown(name), why, allowed, ReasonCode.FORBIDDEN)
            elif name not in BARE_RESOURCES and not is_device(name):
                yield bad_form(place, name, "no container has such a resource", _RESOURCES)
            elif is_device(name) and quantity.endswith("m"):
                why = "a device is given as a whole"
                yield out_of_range(f"{place}[{shown(name)}]", quantity, why, "a whole number")


def sizes(job: PPOJob) -> Iterator[Problem]:
    """A number alone is bytes, which nobody means."""
    for where, settings in all_settings(job):
        given = {
            "memory": settings.memory,
            "sharedMemory": settings.shared_memory,
            f"resources[{shown(_STORAGE)}]": settings.resources.get(_STORAGE),
        }
        for name, size in given.items():
            if size is not None and size[-1] in "0123456789mk":
                why = "that many bytes, or thousands of them, hold no process"
                allowed = f"at least 1Mi, such as {size.rstrip('mk')}Gi"
                yield out_of_range(f"{where}.{name}", size, why, allowed)


_PODS = ("spec.pods",)
POD_FORM_CHECKS = (
    Check(node_labels, _PODS),
    Check(tolerations, _PODS),
    Check(resources, _PODS),
    Check(sizes, _PODS),
)
