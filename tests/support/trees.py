"""What lies below a folder, to hold folders against each other."""

import hashlib
from pathlib import Path


def tree(root: Path) -> dict[str, str]:
    """Every file and link below a folder, with its content."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
