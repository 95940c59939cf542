"""Stores that are full, read-only, or a mount point: on a real small file system where one can be mounted."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_toolkit.deploy import local_store
from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.errors import EXIT_ENVIRONMENT, EnvironmentProblem
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server

_SIZE_BYTES = 4 << 20


class _Hopeful(LocalStore):
    """Says that there is room, so that the disk itself has to say no."""

    def free_bytes(self) -> int:
        return 1 << 40


@pytest.fixture(scope="module")
def mount(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mount")
    argv = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small file system; the injected fault below covers the rest")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small(workshop, mount):
    """A workshop whose store is a mount point, with a server on it."""
    with EmbeddedServer(ServeOptions(repository=mount, load=())) as server:
        yield type(workshop)(workshop.root, mount, server.grpc_url, workshop.prefix)


def test_mount_point_is_deployed_to_and_a_full_or_read_only_one_is_left_alone(small, mount):
    small.build_python("m", 1, marker=11)
    small.deploy("m")  # staged in the store: its parent is another file system
    before, served = small.tree(), set(mount.iterdir())
    assert small.marker("m") == 11

    small.build_python("m", 2, marker=22)
    (small.root / "model_repository" / small.name("m") / "2" / "unhashed.bin").write_bytes(
        os.urandom(_SIZE_BYTES)
    )
    with pytest.raises(EnvironmentProblem, match=r"has \S+ MiB free, and the deployment needs") as early:
        small.deploy("m")
    with pytest.raises(EnvironmentProblem, match="No space left on device") as late:
        small.deploy("m", store=_Hopeful(mount))
    assert (early.value.exit_code, late.value.exit_code) == (EXIT_ENVIRONMENT, EXIT_ENVIRONMENT)
    assert (small.tree(), set(mount.iterdir()), small.marker("m")) == (before, served, 11)

    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    try:
        with pytest.raises(EnvironmentProblem, match="mounted read-only") as read_only:
            small.deploy("m")
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    assert read_only.value.exit_code == EXIT_ENVIRONMENT
    assert (small.tree(), small.marker("m")) == (before, 11)


def test_bind_mount_that_has_its_parents_device_number(tmp_path, mount):
    """Renames between a bind mount and its siblings fail, though both are on one device."""
    store = tmp_path / "my store"
    (store / "inside").mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(store), str(store)], check=True)
    try:
        local = LocalStore(store)
        (local.staged("tt-candidate-1-m")).mkdir(parents=True)
        local.expose("tt-candidate-1-m")
        assert (store / "tt-candidate-1-m").is_dir()
    finally:
        subprocess.run(["umount", str(store)], check=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
def test_disk_that_fails_while_files_are_copied(workshop, monkeypatch, code):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build("m", 2, marker=22)
    copy, copied = local_store.shutil.copy, []

    def failing_copy(source, target):
        if copied:
            raise OSError(code, os.strerror(code), str(target))
        copied.append(copy(source, target))

    monkeypatch.setattr(local_store.shutil, "copy", failing_copy)
    with pytest.raises(EnvironmentProblem, match=os.strerror(code)):
        workshop.deploy("m")
    assert (workshop.tree(), workshop.marker("m")) == (before, 11)
    assert workshop.candidates() == []


def test_model_that_may_not_be_replaced_is_refused_before_anything_is_sent(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before, log = workshop.folders(), (workshop.store / ".tt-deployments.jsonl").read_text()
    workshop.build("m", 2, marker=22)
    config = workshop.store / workshop.name("m") / "config.pbtxt"
    if subprocess.run(["chattr", "+i", str(config)], capture_output=True, check=False).returncode:
        pytest.skip("no permission, or no way on this file system, to mark a file immutable")
    try:
        with pytest.raises(EnvironmentProblem, match=r"config\.pbtxt is marked immutable") as caught:
            workshop.deploy("m")
        with pytest.raises(EnvironmentProblem, match="immutable"):
            workshop.deploy("m", dry_run=True)
    finally:
        subprocess.run(["chattr", "-i", str(config)], check=True)
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert (workshop.folders(), workshop.marker("m")) == (before, 11)
    assert (workshop.store / ".tt-deployments.jsonl").read_text() == log
