import json
import os
import re
import shutil
from pathlib import Path

import kill_server
import msgspec
import pytest

from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.identity import changed_settings, check_bases
from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
    CheckpointSaved,
    Journal,
    Rewound,
    StepDone,
    resume_point,
)
from ppojob_trainer.checkpoint.tensors import Shard
from ppojob_trainer.errors import CannotResume, CheckpointLost, DamagedCheckpoint

FILES = (
    "actor/rank-0/model.safetensors",
    "actor/rank-0/rng.safetensors",
    "actor/rank-1/model.safetensors",
    "actor/rank-1/rng.safetensors",
    "config.json",
    "manifest.json",
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pristine")
    for step in (1, 2, 3):
        kill_server.make_checkpoint(kill_server.open_store(root), step)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def newest(root: Path) -> Path:
    return root / "checkpoints" / "step-000003"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def take_from_checkpoint_before(path: Path) -> None:
    shutil.copy(str(path).replace("step-000003", "step-000002"), path)


DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "first bit": lambda path: flip(path, 0),
    "last bit": lambda path: flip(path, -1),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "removed": Path.unlink,
    "a folder": replace_by_folder,
    "of the checkpoint before": take_from_checkpoint_before,
}


def a_shard(path: str) -> Shard:
    return Shard.of(path, kill_server.tensors(4), role="actor", rank=0)


def test_the_manifest_lists_every_file_with_its_owner(root: Path):
    checkpoint = kill_server.open_store(root).latest().checkpoint
    assert tuple(entry.path for entry in checkpoint.manifest.files) == FILES[:-1]
    owned = [entry.path for entry in checkpoint.manifest.files if entry.rank == 1]
    assert owned == [FILES[2], FILES[3]]
    assert checkpoint.manifest.progress == kill_server.progress(3)
    assert os.readlink(root / "checkpoints" / "latest") == "step-000003"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_each_damage_is_named_and_the_checkpoint_before_is_used(root, file, damage, newest):
    path = newest / file
    before = path.read_bytes()
    DAMAGES[damage](path)
    unchanged = path.is_file() and path.read_bytes() == before
    found = kill_server.open_store(root).recover()
    if unchanged:  # configuration and RNG are the same in both checkpoints
        assert found.checkpoint.step == 3
        return
    assert found.checkpoint.step == 2
    assert [damage.file for _, damage in found.refusals] == [f"step-000003/{file}"]
    assert found.refusals[0][1].reason
    assert os.readlink(root / "checkpoints" / "latest") == "step-000002"


def test_no_whole_checkpoint_left_is_never_a_start_from_nothing(root: Path):
    for step in (1, 2, 3):
        DAMAGES["truncated"](root / "checkpoints" / f"step-{step:06d}" / FILES[2])
    lost = r"step-000003/.*; step-000002/.*; step-000001/.*; restore the files"
    with pytest.raises(CheckpointLost, match=lost):
        kill_server.open_store(root).latest()


def test_a_checkpoint_renamed_to_a_later_step_is_refused(root: Path):
    checkpoints = root / "checkpoints"
    (checkpoints / "step-000003").rename(checkpoints / "step-000009")
    found = kill_server.open_store(root).latest()
    assert found.checkpoint.step == 2
    assert "got step 3" in found.refusals[0][1].reason


def test_every_flipped_bit_of_a_manifest_is_noticed(pristine: Path):
    data = (pristine / "checkpoints" / "step-000003" / "manifest.json").read_bytes()
    manifest.decode(data, "m")
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedCheckpoint, match=r"^m: "):
                manifest.decode(bytes(flipped), "m")
    for length in range(len(data)):
        with pytest.raises(DamagedCheckpoint):
            manifest.decode(data[:length], "m")


def test_a_manifest_without_an_item_is_refused(pristine: Path):
    """Absent state never becomes a default: each field of it is asked for."""
    data = (pristine / "checkpoints" / "step-000003" / "manifest.json").read_bytes()
    body = json.loads(data)["manifest"]
    for inner in (body, body["progress"], body["progress"]["data"], body["files"][0]):
        # Checkpoints of versions without these have none, and belong to no job with them.
        later = {"entropy_coefficient", "prompt_values", "rows_seen", "sampler_state"}
        for key in inner.keys() - later - {"demonstrations"}:
            value = inner.pop(key)
            forged = manifest._encode_envelope(1, msgspec.json.encode(body, order="sorted"))
            with pytest.raises(DamagedCheckpoint, match=key):
                manifest.decode(forged, "m")
            inner[key] = value


def test_a_newer_format_is_not_damage(root: Path, newest):
    path = newest / "manifest.json"
    path.write_bytes(manifest._encode_envelope(2, b'{"other":[]}'))
    with pytest.raises(CannotResume, match=r"step-000003/manifest\.json: got format 2: .* 1;"):
        kill_server.open_store(root).latest()


def test_another_job_is_refused_with_both_identities(root: Path):
    with pytest.raises(CannotResume, match=r"got uid uid-1: this job is uid-2;"):
        kill_server.open_store(root, uid="uid-2").latest()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b'{"spec":{"seed":2}}', r"^spec\.seed: got 2: checkpoint step-000003 was made with 1;"),
        (b'{"spec":{"kl":{"in":"loss"},"seed":1}}', r"^spec\.kl: got {.*}: .* with \(absent\);"),
        (b'{"spec":{}}', r"^spec\.seed: got \(absent\): .* with 1;"),
        (b'{"spec":{"seed":1.0}}', r"^spec\.seed: got 1\.0: .* with 1;"),
        (b'{"spec":[1]}', r'^spec: got \[1\]: .* with {"seed": 1};'),
    ],
)
def test_other_settings_are_refused_by_the_one_that_differs(root, config, message):
    with pytest.raises(CannotResume, match=message) as caught:
        kill_server.open_store(root, config=config).latest()
    assert caught.value.exit_status == 2
    assert len(caught.value.problems) == 1


def test_a_limit_that_follows_from_another_is_not_told_of():
    old, new = ({"data": {"maxPromptTokens": n, "maxTeacherPromptTokens": n}} for n in (8, 9))
    assert changed_settings(old, new) == [("spec.data.maxPromptTokens", "8", "9")]


def test_a_field_that_is_new_has_had_its_default(root: Path):
    known = b'{"spec":{"rollout":{"maxStaleness":0},"seed":1}}'
    for same in (known, b'{"spec":{"gspo":null,"seed":1}}'):  # which is absent in both
        assert kill_server.open_store(root, config=same).latest().checkpoint is not None
    other = known.replace(b"0", b"1")
    with pytest.raises(CannotResume, match=r"^spec\.rollout: got {.*}: .* with \(absent\);"):
        kill_server.open_store(root, config=other).latest()


def test_adapters_belong_to_the_weights_that_they_were_trained_on(root: Path):
    policy, critic = "spec.model.path", "spec.critic.path"
    theirs = {policy: "a" * 64, critic: "c" * 64}

    def check(ours: dict[str, str], theirs: dict[str, str]) -> None:
        check_bases({"bases": theirs} if theirs else {}, ours, root / "step-000003")

    check(theirs, theirs)
    check(theirs, {})  # weights that could not be read are not compared
    check({}, theirs)
    for changed in (policy, critic):
        message = (
            f"^{re.escape(changed)}: got weights b{{12}}: .*-000003 were trained on [ac]{{12}};"
        )
        with pytest.raises(CannotResume, match=message):
            check({**theirs, changed: "b" * 64}, theirs)


def test_another_layout_is_told_and_not_refused(root: Path):
    config = b'{"layout":{"roles":{"ranks":2}},"spec":{"seed":1}}'
    store = kill_server.open_store(root, config=config)
    found = store.latest().checkpoint
    assert store.layout_change(found) == 'spec: null -> {"roles": {"ranks": 2}}'
    assert kill_server.open_store(root).layout_change(found) is None


def test_files_that_changed_since_a_checkpoint_are_named(tmp_path: Path):
    """Those that both have seen; checkpoints from before they were noted have seen none."""
    made = {"same.py": "1", "mended.py": "1", "gone.py": "1"}
    kill_server.make_checkpoint(kill_server.open_store(tmp_path, files=made), 1)
    now = {"same.py": "1", "mended.py": "2", "new.py": "2"}
    store = kill_server.open_store(tmp_path, files=now)
    assert store.changed_files(store.read(1)) == ["mended.py"]
    kill_server.make_checkpoint(kill_server.open_store(tmp_path), 2)
    assert store.changed_files(store.read(2)) == []


def test_prune_never_takes_the_newest_whole_one(root: Path, newest):
    flip(newest / FILES[0], -1)
    flip(root / "checkpoints" / "step-000002" / FILES[0], -1)
    assert kill_server.open_store(root).prune(1) == ()
    assert kill_server.open_store(root).latest().checkpoint.step == 1


def test_a_checkpoint_that_rots_is_made_again_and_costs_no_good_one(root: Path):
    """A disk spoils what this process has written; so the replayed step must be written anew."""
    store = kill_server.open_store(root)
    kill_server.make_checkpoint(store, 4)
    flip(root / "checkpoints" / "step-000004" / FILES[0], -1)
    assert store.recover().checkpoint.step == 3
    assert not store.is_whole(4)
    assert store.prune(2) == (1,)
    kill_server.make_checkpoint(store, 4)
    assert store.latest().checkpoint.step == 4


def test_sealing_again_keeps_what_is_sealed(root: Path, newest):
    """A controller that was killed between the rename and its journal asks again."""
    before = (newest / "manifest.json").stat().st_ino
    kill_server.make_checkpoint(kill_server.open_store(root), 3)
    assert (newest / "manifest.json").stat().st_ino == before
    assert [p.name for p in (root / "checkpoints").iterdir() if p.name.startswith(".")] == []


def test_a_restarted_controller_finds_what_the_ranks_wrote(root: Path):
    first = kill_server.open_store(root).begin(4, rewinds=2)
    entry = a_shard("a/model").write(first)
    store = kill_server.open_store(root)
    again = store.begin(4, rewinds=2)
    assert again == first
    assert entry in store.complete(again, kill_server.progress(4), [entry]).manifest.files


def test_a_late_rank_of_an_older_attempt_finds_its_folder_gone(root: Path):
    store = kill_server.open_store(root)
    old = store.begin(4, rewinds=1)
    store.begin(4, rewinds=2)
    for path in ("a/model", "model"):
        with pytest.raises(FileNotFoundError):
            a_shard(path).write(old)


def test_seal_refuses_what_does_not_fit_the_answers(root: Path):
    store = kill_server.open_store(root)
    pending = store.begin(4)
    entry = a_shard("a/model").write(pending)
    absent = msgspec.structs.replace(entry, path="a/other")
    with pytest.raises(DamagedCheckpoint, match="a/other: the file is missing"):
        store.complete(pending, kill_server.progress(4), [entry, absent])
    assert store.complete(pending, kill_server.progress(4), [entry]).step == 4


def test_checkpoints_that_vanished_are_noticed_by_the_journal(root: Path, newest):
    store = kill_server.open_store(root)
    events = [CheckpointSaved(time=0.0, step=step, size_bytes=1) for step in (2, 3)]
    assert resume_point(store, events).refusals == ()
    shutil.rmtree(newest)
    found = resume_point(store, events)
    assert found.checkpoint.step == 2
    assert [str(damage) for _, damage in found.refusals] == ["step-000003: the folder is missing"]
    for step in (1, 2):
        shutil.rmtree(root / "checkpoints" / f"step-{step:06d}")
    with pytest.raises(CheckpointLost, match="step 3 was saved according to the journal"):
        resume_point(store, events)


def test_journal_gives_back_what_was_appended(tmp_path: Path):
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.read() == []
    events = [
        AttemptStarted(time=1.0, role="actor_rollout", attempt=1, world_size=2),
        StepDone(time=2.0, progress=kill_server.progress(1)),
        CheckpointSaved(time=3.0, step=1, size_bytes=10),
        Rewound(time=4.0, from_step=2, to_step=1, reason="a rank was lost"),
    ]
    for event in events:
        journal.append(event)
    assert journal.read() == events
    with journal.path.open("ab") as file:
        file.write(b'{"event":"step_d')
    assert journal.read() == events
    journal.append(events[0])
    assert journal.read() == [*events, events[0]]


def test_what_earlier_versions_wrote_of_a_state_is_ignored(tmp_path: Path):
    journal = Journal(tmp_path / "journal.jsonl")
    done = StepDone(time=2.0, progress=kill_server.progress(1))
    journal.append(done)
    role = b'{"role":"critic","world_size":1,"epoch":1,"optimizer_steps":1}'
    old = b'"progress":{"policy_version":1,"roles":[%b],' % role
    journal.path.write_bytes(journal.path.read_bytes().replace(b'"progress":{', old))
    assert journal.read() == [done]


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"event":"unknown","time":1}', b'{"event":"exported","time":1}', b"\xff"]
)
def test_a_damaged_journal_line_is_named(tmp_path: Path, line: bytes):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(CheckpointSaved(time=3.0, step=1, size_bytes=10))
    with journal.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DamagedCheckpoint, match=r"^journal\.jsonl:2: no event"):
        journal.read()
