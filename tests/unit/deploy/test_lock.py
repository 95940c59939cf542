import json
import os
import socket
import threading

import pytest

from triton_toolkit.deploy.lock import LOCK_NAME, LockOwner, hold_lock, lock_owner
from triton_toolkit.errors import DeployError


def _owner(**changes) -> str:
    values = {"user": "ann", "host": socket.gethostname(), "pid": 1, "since": "2026-01-01T00:00:00+00:00"}
    return json.dumps(values | changes)


def test_lock_is_free_again_and_leaves_no_file(tmp_path):
    with hold_lock(tmp_path, wait_s=0) as former:
        assert former is None
        assert lock_owner(tmp_path).pid == os.getpid()
    assert lock_owner(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_second_deployment_is_refused_with_the_name_of_the_first(tmp_path):
    with hold_lock(tmp_path, wait_s=0), pytest.raises(DeployError) as caught, hold_lock(tmp_path, wait_s=0):
        pass
    assert f"process {os.getpid()}, since 20" in caught.value.message


def test_second_deployment_waits_for_the_first(tmp_path):
    release, order = threading.Event(), []

    def first():
        with hold_lock(tmp_path, wait_s=0):
            taken.set()
            release.wait()
            order.append("first")

    taken, thread = threading.Event(), threading.Thread(target=first)
    thread.start()
    taken.wait()
    threading.Timer(0.2, release.set).start()
    with hold_lock(tmp_path, wait_s=10):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_lock_of_a_dead_process_is_taken_over_and_told(tmp_path):
    (tmp_path / LOCK_NAME).write_text(_owner(pid=4242))
    with hold_lock(tmp_path, wait_s=0) as former:
        assert former == LockOwner(**json.loads(_owner(pid=4242)))


def test_lock_of_another_host_is_believed(tmp_path):
    """flock does not reach other hosts on every network file system."""
    (tmp_path / LOCK_NAME).write_text(_owner(host="elsewhere"))
    with pytest.raises(DeployError, match="ann@elsewhere") as caught, hold_lock(tmp_path, wait_s=0):
        pass
    assert f"remove {tmp_path / LOCK_NAME}" in caught.value.hint
    assert lock_owner(tmp_path).host == "elsewhere"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": "ann"}'])
def test_lock_file_without_a_readable_owner_is_taken(tmp_path, text):
    (tmp_path / LOCK_NAME).write_text(text)
    with hold_lock(tmp_path, wait_s=0) as former:
        assert former is None


def test_lock_is_released_when_the_work_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), hold_lock(tmp_path, wait_s=0):
        raise KeyboardInterrupt
    with hold_lock(tmp_path, wait_s=0):
        pass
