"""What the operator asks of a cluster: the border that `http_cluster` implements and tests fake."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ppojob_operator.kinds import Kind
from ppojob_operator.state import Manifest

FIELD_MANAGER = "ppojob-operator"


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the objects of a list.

    Attributes:
        items: the objects.
        resource_version: where a watch goes on from behind the whole list.
    """

    items: tuple[Manifest, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch; `BOOKMARK` tells of no object, only how far the stream is."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    manifest: Manifest


class Cluster(Protocol):
    """An API server. Every method raises a `ClusterError`; `errors` tells which means what."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Read one object."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Make an object that must not be there: an object of others is never taken over.

        Raises:
            ConflictError: the name is taken.
        """
        ...

    async def apply(self, manifest: Manifest, uid: str) -> Manifest:
        """Server-side apply to the very object with this uid, fields of others included.

        Raises:
            ConflictError: the object is another one now.
        """
        ...

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Server-side apply of a status, of the version and the uid that the metadata has."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Write an object whole; conditional on `metadata.resourceVersion`."""
        ...

    async def replace_status(self, manifest: Manifest) -> Manifest:
        """Write the status of an object whole; conditional on `metadata.resourceVersion`."""
        ...

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        """Delete the very object with this uid, and in the background what it owns."""
        ...

    def pages(self, kind: Kind, namespace: str, selector: str) -> AsyncIterator[Page]:
        """List objects page by page; an empty namespace means all, an empty selector every."""
        ...

    def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str
    ) -> AsyncIterator[Change]:
        """Follow objects; ends when the API server closes the stream.

        Raises:
            ExpiredError: the resource version is too old.
        """
        ...
