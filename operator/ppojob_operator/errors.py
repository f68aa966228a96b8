"""Errors of the Kubernetes API, by HTTP status."""

import json

_MESSAGE_CHARACTERS = 300


class ClusterError(Exception):
    """A request that the API server did not carry out.

    Attributes:
        status: HTTP status; 0 where there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class UnavailableError(ClusterError):
    """No answer, 429 or 5xx: the same request may work later.

    Attributes:
        retry_after: seconds that it asked for, or None.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after


class ConflictError(ClusterError):
    """409: somebody else was faster, or the name is taken."""


class MissingError(ClusterError):
    """404: it is not there (any more)."""


class ExpiredError(ClusterError):
    """410: the place in the stream is too old, list again."""


class RefusedError(ClusterError):
    """Any other 4xx: the same request never works."""


class NotLeaderError(Exception):
    """This replica must not write: the Lease is not ours, or was not renewed in time."""


def message_of(body: str) -> str:
    """What an answer says, which is a Status; of what stands before an API server a text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:_MESSAGE_CHARACTERS]


def error_of(status: int, message: str, retry_after: float | None = None) -> ClusterError:
    """The error that an HTTP status means."""
    if status == 429 or status >= 500:
        return UnavailableError(message, status, retry_after)
    kinds: dict[int, type[ClusterError]] = {
        404: MissingError,
        409: ConflictError,
        410: ExpiredError,
    }
    return kinds.get(status, RefusedError)(message, status)
