"""`ppojob run` on wrong input, within the process of a test: what it says, and nothing done."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import tiny_jobs
from click.testing import CliRunner
from ruamel.yaml import YAML

from ppojob_cli.main import main


class RefusedJob:
    """A tiny job whose files and manifest a test may spoil; `tiny` has the files to copy."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        shutil.copytree(tiny, self.files)
        self.model = self.files / "model"
        self.train = self.files / "train.jsonl"
        self.reward = self.files / "reward.py"
        self.output = folder / "run"
        self.manifest = folder / "job.yaml"
        self.warnings: list[str] = []
        self.job = tiny_jobs.make_manifest(self.files)
        self.set("spec.data", {**self.get("spec.data"), "validation": []})
        self.set("spec.steps", {"total": 6})

    def get(self, path: str) -> dict[str, object]:
        found = self.job
        for key in path.split("."):
            found = found[key]
        return found

    def set(self, path: str, value: object) -> None:
        """Write a field of the manifest; sections that are absent are made."""
        *sections, last = path.split(".")
        found = self.job
        for key in sections:
            found = found.setdefault(key, {})
        found[last] = value

    def write_manifest(self) -> Path:
        YAML(typ="safe").dump(self.job, self.manifest)
        return self.manifest

    def edit(self, name: str, changes: Mapping[str, object]) -> None:
        """Change fields of a JSON file of the policy's model; None takes one away."""
        edit(self.model / name, changes)

    def refused(self, *arguments: str | Path) -> list[str]:
        """The lines of errors, without the folder of the test; nothing else may have happened."""
        before = _tree(self.output)
        given = arguments or (self.write_manifest(),)
        options = ["--plain", "--output", self.output]
        outcome = CliRunner().invoke(main, list(map(str, ["run", *given, *options])))
        assert isinstance(outcome.exception, SystemExit), outcome.exception
        assert outcome.exit_code == 2, outcome.output
        assert "Traceback" not in outcome.output
        assert _tree(self.output) == before, "something was written"
        lines = self.bare(outcome.output).splitlines()
        self.warnings = [line for line in lines if line.startswith("warning: ")]
        return [line for line in lines if not line.startswith("warning: ")]

    def bare(self, text: str) -> str:
        for folder in (self.files, self.folder):
            text = text.replace(f"{folder}/", "").replace(str(folder), ".")
        return re.sub(r"as uid \d+ in [^;]*", "as uid UID in CWD", text)


def edit(path: Path, changes: Mapping[str, object]) -> None:
    """Change fields of a JSON file; None takes one away."""
    content = {**json.loads(path.read_text()), **changes}
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(kept))


def check(wrong: RefusedJob, expected: list[str]) -> None:
    """Hold what `ppojob run` says against a case: all errors, and the warnings that are listed."""
    errors = wrong.refused()
    assert errors == [line for line in expected if not line.startswith("warning: ")], errors
    listed = [line for line in expected if line.startswith("warning: ")]
    assert [line for line in wrong.warnings if line in listed] == listed, wrong.warnings


def _tree(folder: Path) -> list[Path]:
    """All that is in a run folder but its lock."""
    return sorted(path for path in folder.rglob("*") if path.name != ".lock")
