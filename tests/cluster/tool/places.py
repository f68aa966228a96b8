"""Where things lie: all of it below one folder that git ignores."""

from pathlib import Path

TOOL = Path(__file__).resolve().parent


class Places:
    """The folders of one checkout's cluster; `root` is `.cluster`, and only it is written to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # What was built, kept: `<program>/<key>/<binary>`.
        self.programs = root / "programs"
        # Links to the binaries that are in use, kubectl, helm and ctr among them.
        self.bin = root / "bin"
        # Base archives, image layouts and buildah's layers, kept.
        self.images = root / "images"
        # containerd's content and snapshots, kept: an image is imported once. Blobs by digest.
        self.store = root / "store"
        self.content = self.store / "io.containerd.content.v1.content" / "blobs" / "sha256"
        # All that a running node writes; gone with it.
        self.node = root / "node"
        # Where containerd listens.
        self.socket = self.node / "containerd.sock"
        # A log a process, and the audit log; kept until the next node starts.
        self.logs = root / "logs"
        # An administrator's way in; there while the node runs.
        self.kubeconfig = root / "kubeconfig"
        # What kubectl remembers of this node's API; another node's may differ.
        self.kubectl = root / "kubectl"
        # Held while a command runs.
        self.lock = root / "lock"
