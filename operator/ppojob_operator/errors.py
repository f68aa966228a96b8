"""What can go wrong with the cluster.

ClusterError                  everything that a request can end with
+-- UnavailableError          no answer, 429 or 5xx: the same request may work later
+-- ConflictError             409: somebody else was faster, or the name is taken
+-- MissingError              404: it is not there (any more)
+-- ExpiredError              410: the place in the stream is too old, list again
+-- RefusedError              any other 4xx: the same request never works
NotLeaderError                this replica must not write
"""


class ClusterError(Exception):
    """A request that the API server did not carry out.

    Attributes:
        status: HTTP status; 0 where there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class UnavailableError(ClusterError):
    """The API server did not answer, or asked to be left alone for a while.

    Attributes:
        retry_after: seconds that it asked for, or None.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after


class ConflictError(ClusterError):
    """The object is not as the request assumed."""


class MissingError(ClusterError):
    """There is no such object."""


class ExpiredError(ClusterError):
    """The resource version is older than what the API server remembers."""


class RefusedError(ClusterError):
    """Forbidden or invalid."""


class NotLeaderError(Exception):
    """The Lease is not ours, or was not renewed in time."""


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
