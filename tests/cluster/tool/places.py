"""Where things lie: all of it below one folder that git ignores."""

from dataclasses import dataclass
from pathlib import Path

TOOL = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Places:
    """The folders of one checkout's cluster.

    Attributes:
        root: `.cluster`, the only folder that is written to.
    """

    root: Path

    @property
    def programs(self) -> Path:
        """What was built, kept: `<program>/<key>/<binary>`."""
        return self.root / "programs"

    @property
    def bin(self) -> Path:
        """Links to the binaries that are in use, kubectl, helm and ctr among them."""
        return self.root / "bin"

    @property
    def images(self) -> Path:
        """Base archives, image layouts and buildah's layers, kept."""
        return self.root / "images"

    @property
    def store(self) -> Path:
        """containerd's content and snapshots, kept: an image is imported once."""
        return self.root / "store"

    @property
    def content(self) -> Path:
        """The blobs of containerd's images, by their digests."""
        return self.store / "io.containerd.content.v1.content" / "blobs" / "sha256"

    @property
    def node(self) -> Path:
        """All that a running node writes; gone with it."""
        return self.root / "node"

    @property
    def socket(self) -> Path:
        """Where containerd listens."""
        return self.node / "containerd.sock"

    @property
    def logs(self) -> Path:
        """A log a process, and the audit log; kept until the next node starts."""
        return self.root / "logs"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's way in; there while the node runs."""
        return self.root / "kubeconfig"

    @property
    def kubectl(self) -> Path:
        """What kubectl remembers of this node's API; another node's may differ."""
        return self.root / "kubectl"

    @property
    def lock(self) -> Path:
        """Held while a command runs."""
        return self.root / "lock"
