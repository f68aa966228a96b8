"""The pods of a job as those see them who place them: alike within a role, and countable. Pure."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from ppojob_api.v1alpha1.pod_settings import PodSettings, settings_of
from ppojob_api.well_known import ROLE_SLUGS
from ppojob_operator.build.config_map import PodConfig
from ppojob_operator.build.pod_template import pod_template
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job, Manifest

_SUFFIXES = {
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
}
"""Those that `PodSettings` allows, https://kubernetes.io/docs/reference/kubernetes-api/
common-definitions/quantity."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of a role, whose template a queue may add to."""

    slug: str
    count: int
    template: Manifest


def pod_sets(
    job: Job, config: PodConfig, settings: tuple[PodSettings, ...], defaults: Settings
) -> tuple[PodSet, ...]:
    """The pods of all roles, the controller's too: without any one of them nothing trains."""
    return tuple(
        PodSet(
            ROLE_SLUGS[role.role],
            len(role.pods),
            pod_template(job, config, role, settings_of(settings, role.role), defaults),
        )
        for role in config.run.topology.with_own_pods
    )


def total_requests(sets: tuple[PodSet, ...]) -> dict[str, str]:
    """What all pods together ask for, by resource."""
    totals: dict[str, Fraction] = defaultdict(Fraction)
    for one in sets:
        for container in one.template["spec"]["containers"]:
            for name, text in container["resources"]["requests"].items():
                totals[name] += one.count * _number(text)
    return {name: _quantity(total) for name, total in sorted(totals.items())}


def _number(text: str) -> Fraction:
    digits = text.rstrip("mkMGTi")
    return int(digits) * _SUFFIXES.get(text[len(digits) :], Fraction(1))


def _quantity(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{number * 1000}m"
