"""What can be wrong with the use of a cluster, each in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from ppojob_cli.input_error import InputError
from ppojob_operator.errors import ClusterError, UnavailableError


class ClusterUseError(InputError):
    """What a person asked of a cluster cannot be."""


def got_no_answer(server: str, why: str) -> UnavailableError:
    """Nobody answers where the kubeconfig says that an API server is."""
    return UnavailableError(
        f"cluster: got no answer from {server}: {why}; "
        "an API server that can be reached, see kubectl cluster-info"
    )


def one_line(problem: ClusterError) -> str:
    """What the API server refused, and what to do about it."""
    said = " ".join(str(problem).split())
    if problem.status == 0:
        return said
    if problem.status == 401:
        why, allowed = "the API server does not know you", "log in again, see kubectl auth whoami"
    elif problem.status == 403:
        why, allowed = said, "ask for that right, see kubectl auth can-i --list"
    elif isinstance(problem, UnavailableError):
        why, allowed = said or "the API server is in trouble", "try again"
    else:
        why, allowed = said, "what the API server takes"
    return f"cluster: got {problem.status}: {why}; {allowed}"


@contextmanager
def told() -> Iterator[None]:
    """Tell in one line what the API server refuses."""
    try:
        yield
    except ClusterError as problem:
        raise ClusterUseError(one_line(problem)) from None
