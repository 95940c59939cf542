"""The cache in a bucket, against an S3 server on this host."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.build.places import KEY, REPORT, Place
from triton_toolkit._files import hash_tree
from triton_toolkit.build.cache import Reads, StageCache
from triton_toolkit.cli import cli

SECRET = "not-to-be-seen-anywhere"
BUCKET = "builds"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Run moto's server, which speaks S3 over HTTP."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Set what AWS reads to the local server, and make the bucket."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return endpoint


def bucket() -> Any:
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


@pytest.fixture
def place(aws: str, tmp_path: Path) -> Iterator[Place]:
    fs = bucket()
    fs.mkdir(BUCKET)
    place = Place(tmp_path)
    place.cache = cache(place)
    yield place
    fs.rm(BUCKET, recursive=True)


def cache(place: Place, location: str = f"s3://{BUCKET}/team/tt") -> StageCache:
    return StageCache(location, place.root, progress=place.notes)


def test_what_one_runner_stored_another_fetches(place: Place) -> None:
    place.store()
    place.cache = cache(place)
    report, into = place.fetch()
    assert report == REPORT
    assert hash_tree(into) == hash_tree(place.made())
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py"}), True)
    assert place.notes.texts == []
    assert all(path.startswith(f"{BUCKET}/team/tt/v1/") for path in bucket().find(BUCKET))


def test_an_empty_bucket_has_nothing(place: Place) -> None:
    assert place.fetch()[0] is None
    assert place.cache.dependencies("export", KEY) is None
    assert place.notes.texts == []


def test_a_changed_dependency_finds_nothing(place: Place) -> None:
    place.store()
    (place.root / "net.py").write_text("changed")
    assert place.fetch()[0] is None


def test_a_damaged_object_is_told_and_mended(place: Place) -> None:
    place.store()
    fs = bucket()
    for path in fs.find(f"{BUCKET}/team/tt/v1/objects"):
        fs.pipe_file(path, bytes(fs.info(path)["size"])[:-1] + b"x")
    report, into = place.fetch()
    assert report is None
    assert list(into.iterdir()) == []
    assert "is damaged" in place.notes.texts[0]
    place.store()
    assert place.fetch()[0] == REPORT


def test_a_bucket_that_is_not_there_is_told_once(aws: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.cache = cache(place, "s3://no-such-bucket/tt")
    assert place.fetch()[0] is None
    place.store()
    place.store()
    assert place.notes.texts == [
        "cache: cannot write s3://no-such-bucket/tt: there is no such bucket; building without it"
    ]


def test_a_server_that_cannot_be_reached_is_told_once(
    aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as held:  # bound and not listening: refuses at once
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{held.getsockname()[1]}")
        place = Place(tmp_path)
        place.cache = cache(place)
        assert place.fetch()[0] is None
        place.store()
        assert place.fetch()[0] is None
    assert place.notes.texts == [
        "cache: cannot read s3://builds/team/tt: it cannot be reached; building without it"
    ]


def test_without_credentials_it_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    place.cache = cache(place)
    assert place.fetch()[0] is None
    (text,) = place.notes.texts
    assert "there are no AWS credentials" in text


def test_no_note_and_no_log_of_ours_holds_a_credential(
    aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.replace("http://", f"http://user:{SECRET}@"))
    place = Place(tmp_path)
    place.cache = cache(place)
    assert place.fetch()[0] is None
    assert place.notes.texts
    assert SECRET not in "".join(place.notes.texts) + caplog.text


SPEC = """
spec: 1
models:
  m: {kind: python, files: m, inputs: {x: {dtype: fp32, shape: [3]}}, outputs: {y: {dtype: fp32, shape: [3]}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "runner"
    (root / "m").mkdir(parents=True)
    (root / "m/model.py").write_text("class TritonPythonModel: pass\n")
    (root / "tt.yaml").write_text(SPEC)
    return root


def build(project: Path) -> Result:
    words = ["build", "--spec", str(project / "tt.yaml"), "--cache", f"s3://{BUCKET}/tt", "--json"]
    return CliRunner().invoke(cli, words)


def test_two_runners_share_a_bucket(place: Place, project: Path, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "other")
    first, second = build(project), build(other)
    assert [result.exit_code for result in (first, second)] == [0, 0]
    taken = [json.loads(result.stdout)["models"][0]["from_cache"] for result in (first, second)]
    assert taken == [False, True]
    assert not (project / ".tt/cache").exists()


def test_a_build_goes_on_without_a_bucket(aws: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{held.getsockname()[1]}")
        result = build(project)
    assert result.exit_code == 0
    assert result.stderr.count("building without it") == 1
    assert SECRET not in result.output
    assert (project / "model_repository/m/1/model.py").is_file()
