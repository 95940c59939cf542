"""The cache of stage results: what it finds, what it refuses, and many writers at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.build.places import KEY, REPORT, Notes, Place
from triton_toolkit._files import hash_tree
from triton_toolkit.build import cache
from triton_toolkit.build.cache import Reads, StageCache
from triton_toolkit.build.stores import LocalStore
from triton_toolkit.errors import UsageError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_was_stored_is_fetched_byte_for_byte(place: Place) -> None:
    place.store()
    report, into = place.fetch()
    assert report == REPORT
    assert hash_tree(into) == hash_tree(place.made())
    assert place.notes.texts == []


def test_another_process_finds_it(place: Place) -> None:
    place.store()
    place.cache = place.open()
    assert place.fetch()[0] == REPORT


def test_an_empty_cache_has_nothing_and_is_not_made_by_reading(place: Place) -> None:
    report, into = place.fetch()
    assert report is None
    assert list(into.iterdir()) == []
    assert not place.cache_folder.exists()


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("optimise", KEY),
        ("export", {**KEY, "spec": "2"}),
        ("export", {**KEY, "tool torch": "2.14.0"}),
        ("export", {**KEY, "hashed weights.pt": "aa"}),
        ("export", {"spec": "1"}),
    ],
    ids=["stage", "value", "tool", "more", "less"],
)
def test_another_key_finds_nothing(place: Place, stage: str, key: dict[str, str]) -> None:
    place.store()
    assert place.fetch(stage, key)[0] is None


def test_a_changed_dependency_finds_nothing_until_it_is_back(place: Place) -> None:
    place.store(names=("net.py", "layers.py"))
    (place.root / "layers.py").write_text("changed")
    assert place.fetch()[0] is None
    (place.root / "layers.py").write_text("two")
    assert place.fetch()[0] == REPORT


def test_a_dependency_that_is_gone_finds_nothing(place: Place) -> None:
    place.store()
    (place.root / "net.py").unlink()
    assert place.fetch()[0] is None


def test_results_of_several_states_of_a_file_live_side_by_side(place: Place) -> None:
    place.store("first")
    (place.root / "net.py").write_text("second state")
    place.store("second")
    assert (place.fetch()[1] / "model.onnx").read_text() == "second"
    (place.root / "net.py").write_text("one")
    assert (place.fetch()[1] / "model.onnx").read_text() == "first"


def test_the_run_that_read_other_files_is_found_as_well(place: Place) -> None:
    place.store("alone")
    (place.root / "net.py").write_text("import layers")
    place.store("with layers", names=("net.py", "layers.py"))
    assert (place.fetch()[1] / "model.onnx").read_text() == "with layers"
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py", "layers.py"}), True)


def test_dependencies_are_known_in_the_state_that_they_were_read_in(place: Place) -> None:
    place.store()
    (place.root / "net.py").write_text("import layers")
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py"}), False)
    (place.root / "net.py").write_text("one")
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py"}), True)


def test_dependencies_of_an_unknown_key_are_unknown(place: Place) -> None:
    place.store()
    assert place.cache.dependencies("export", {"spec": "2"}) is None


def test_equal_files_are_kept_once(place: Place) -> None:
    place.store()
    place.store(key={**KEY, "spec": "2"})
    assert len(place.entries("objects")) == 2
    assert len(place.entries("results")) == 2


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [damage, truncate, empty])
@pytest.mark.parametrize("kind", ["objects", "results", "manifests"])
def test_a_damaged_entry_is_told_and_not_used_and_is_mended(
    place: Place, kind: str, harm: Callable[[Path], None]
) -> None:
    place.store()
    for path in place.entries(kind):
        harm(path)
    report, into = place.fetch()
    assert report is None
    assert list(into.iterdir()) == []
    assert len(place.notes.texts) == 1
    assert "is damaged" in place.notes.texts[0]
    place.store()
    assert place.fetch()[0] == REPORT
    assert len(place.notes.texts) == 1


def test_a_file_that_was_cleared_away_is_a_miss_without_a_word(place: Place) -> None:
    place.store()
    place.entries("objects")[0].unlink()
    report, into = place.fetch()
    assert report is None
    assert list(into.iterdir()) == []
    assert place.notes.texts == []


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_a_result_that_names_files_elsewhere_is_not_used(place: Place, name: str) -> None:
    import json

    from triton_toolkit._files import canonical_json, sha256_bytes

    place.store()
    (path,) = place.entries("results")
    body = json.loads(path.read_text())["body"]
    body["files"] = {name: next(iter(body["files"].values()))}
    path.write_text(json.dumps({"sha256": sha256_bytes(canonical_json(body).encode()), "body": body}))
    report, into = place.fetch()
    assert report is None
    assert list(into.iterdir()) == []
    assert not (into.parent / "outside").exists()
    assert "is damaged" in place.notes.texts[0]


def test_a_cache_that_cannot_be_written_is_told_once(place: Place) -> None:
    place.cache_folder.write_text("a file is in the way")
    place.store()
    place.store()
    assert place.fetch()[0] is None
    (text,) = place.notes.texts
    assert text == f"cache: cannot write {place.cache_folder}: Not a directory; building without it"
    assert place.cache.folder is None


def writer(base: Path, number: int) -> None:
    place = Place.__new__(Place)
    place.root, place.cache_folder, place.notes = base / "project", base / "cache", Notes()
    place._base, place._fetched = base / f"writer-{number}", 0
    place.cache = place.open()
    for turn in range(20):
        place.store(f"weights {turn}", key={**KEY, "turn": str(turn)})
        report, into = place.fetch(key={**KEY, "turn": str(turn)})
        if report != REPORT or (into / "model.onnx").read_text() != f"weights {turn}" or place.notes.texts:
            os._exit(1)
    os._exit(0)


def test_several_writers_of_the_same_results_at_once(place: Place, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=writer, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(place.entries("results")) == 20
    assert [path.name for path in place.cache_folder.rglob(".*")] == [".gitignore"]


KILLED = """
import os, signal, sys
from pathlib import Path
from triton_toolkit.build import cache
from triton_toolkit.build.cache import StageCache

cache._code_hash = lambda: "any"
count, at = 0, int(sys.argv[1])

def counted(name):
    original = getattr(Path, name)
    def call(self, *words):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *words)
    setattr(Path, name, call)

counted("replace")
counted("chmod")
StageCache(Path(f"cache-{at}"), Path("project")).store("export", {"spec": "1"}, {}, Path("made"), {"a": 1})
print("whole")
"""
"""Stores and is killed before the n-th change of a name or mode: between any two of its writes."""


def test_a_writer_that_is_killed_leaves_nothing_that_is_taken(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_code_hash", lambda: "any")  # the same in both processes
    place.made()
    for at in range(1, 20):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(at)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        if done.stdout == "whole\n":
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        place.cache = StageCache(tmp_path / f"cache-{at}", place.root, progress=place.notes)
        assert place.fetch(key={"spec": "1"})[0] is None
        assert place.notes.texts == []
    assert at == 9  # four entries, a mode and a name each
    place.cache = StageCache(tmp_path / f"cache-{at}", place.root, progress=place.notes)
    assert place.fetch(key={"spec": "1"})[0] == {"a": 1}


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, limit_bytes=1000)
    for number in range(5):
        store.write(str(number), bytes(150))
        os.utime(tmp_path / str(number), (number, number))
    store.prune()
    assert len(store.names(".")) == 5
    assert store.read("0") == bytes(150)  # used just now
    store.write("5", bytes(300))
    store.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "4", "5"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 800


def test_what_a_killed_writer_left_is_removed_after_a_day(tmp_path: Path) -> None:
    now = time.time()
    for name, age_s in ((".tt-writing-old", 90_000), (".tt-writing-new", 60)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (now - age_s, now - age_s))
    LocalStore(tmp_path).prune()
    assert [path.name for path in tmp_path.iterdir()] == [".tt-writing-new"]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("gs://bucket/x", "not in gs://"),
        ("s3://", "names no bucket"),
        ("s3://AKIA:secret@bucket/x", "holds more than a bucket and a prefix"),
        ("s3://bucket/x?X-Amz-Signature=secret", "holds more than a bucket and a prefix"),
    ],
)
def test_other_urls_are_refused_without_repeating_credentials(
    tmp_path: Path, location: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        StageCache(location, tmp_path)
    assert "secret" not in str(caught.value)
    assert "AKIA" not in str(caught.value)
