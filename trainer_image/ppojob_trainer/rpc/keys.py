"""CURVE key pairs of ZeroMQ, one per role, for authentication and authorization."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import zmq

from ppojob_trainer.errors import ConfigError

SECRET_FILE = "role.key"
PUBLIC_FILE = "public.json"


@dataclass(frozen=True)
class KeyRing:
    """The key pair of one role and the public keys of all."""

    role: str
    secret: bytes  # Z85 text, 40 bytes
    public: dict[str, bytes]  # role -> Z85 text of its public key

    def role_of(self, public_key: bytes) -> str | None:
        return next((role for role, key in self.public.items() if key == public_key), None)


def write_key_folders(root: Path, roles: tuple[str, ...]) -> None:
    """Generate a key pair per role in `root/<role>/`; FileExistsError if a folder exists."""
    pairs = {role: zmq.curve_keypair() for role in roles}
    public = json.dumps({role: pair[0].decode() for role, pair in pairs.items()}, sort_keys=True)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for role, (_, secret) in pairs.items():
        folder = root / role
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder / SECRET_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
        (folder / PUBLIC_FILE).write_text(public)


def read_key_ring(folder: Path, role: str) -> KeyRing:
    """Read the keys that a pod of `role` mounts; ConfigError if they are missing or invalid."""
    try:
        secret = (folder / SECRET_FILE).read_bytes().strip()
        public = {
            name: key.encode()
            for name, key in json.loads((folder / PUBLIC_FILE).read_text()).items()
        }
        derived = zmq.curve_public(secret)
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"{folder}: no usable keys for role {role}: {problem}; "
            f"the folder must hold {SECRET_FILE} and {PUBLIC_FILE}"
        ) from problem
    if public.get(role) != derived:
        raise ConfigError(f"{folder}: {SECRET_FILE} is not the secret of role {role}")
    return KeyRing(role=role, secret=secret, public=public)
