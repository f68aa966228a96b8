"""Errors of the Kubernetes API, by HTTP status."""

import json

_MESSAGE_CHARACTERS = 300


class ClusterError(Exception):
    """A request to the API server that failed.

    Attributes:
        status: HTTP status; 0 without an answer.
        retry_after: seconds of the header Retry-After, or None.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class UnavailableError(ClusterError):
    """No answer, 429 or 5xx: the same request may succeed later."""


class ConflictError(ClusterError):
    """409: another client wrote first, or the name exists."""


class MissingError(ClusterError):
    """404: the object does not exist."""


class ExpiredError(ClusterError):
    """410: the resource version is too old; list again."""


class RefusedError(ClusterError):
    """Any other 4xx: the same request never succeeds."""


class NotLeaderError(Exception):
    """This replica must not write: it does not hold the Lease, or did not renew it in time."""


def message_of(body: str) -> str:
    """The message of a Status object, or the text of a proxy in front of the API server."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:_MESSAGE_CHARACTERS]


def error_of(status: int, message: str, retry_after: float | None = None) -> ClusterError:
    """The error for an HTTP status."""
    kinds = {404: MissingError, 409: ConflictError, 410: ExpiredError, 429: UnavailableError}
    kind = UnavailableError if status >= 500 else kinds.get(status, RefusedError)
    return kind(message, status, retry_after)
