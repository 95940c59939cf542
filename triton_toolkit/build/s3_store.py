"""A cache in an S3 bucket, through s3fs. Credentials, region and endpoint come from where AWS looks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_toolkit._optional import require
from triton_toolkit.build.stores import StoreProblem

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60


class S3Store:
    """Entries are objects below a prefix; S3 shows an object whole or not at all."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.shown = f"s3://{bucket}/{prefix}".rstrip("/")
        self._base = f"{bucket}/{prefix}".rstrip("/")
        s3fs = require("s3fs", extra="s3", purpose="keep a cache in s3://")
        self._fs: Any = s3fs.S3FileSystem(
            use_listings_cache=False,
            skip_instance_cache=True,  # it would also outlive a change of the environment
            config_kwargs={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "read_timeout": _READ_TIMEOUT_S,
                "retries": {"max_attempts": 2},
            },
        )
        self._fs.retries = 1  # botocore's own are enough

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder, sorted; [] where there is none."""
        with _s3_problems():
            try:
                found = self._fs.find(f"{self._base}/{folder}", maxdepth=1)
            except FileNotFoundError:
                return []
        return sorted(path.removeprefix(self._base + "/") for path in found)

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, None where there is none."""
        with _s3_problems():
            try:
                data: bytes = self._fs.cat_file(f"{self._base}/{name}")
            except FileNotFoundError:
                return None
        return data

    def read_file(self, name: str, target: Path) -> bool:
        """Copy an object to a file; False where there is none."""
        with _s3_problems():
            try:
                self._fs.get_file(f"{self._base}/{name}", str(target))
            except FileNotFoundError:
                return False
        return True

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, None where there is none."""
        with _s3_problems():
            try:
                return int(self._fs.info(f"{self._base}/{name}")["size"])
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        with _s3_problems():
            self._fs.pipe_file(f"{self._base}/{name}", data)

    def write_file(self, name: str, source: Path) -> None:
        """Write a file as an object; large ones in parts, which S3 joins in the end."""
        with _s3_problems():
            self._fs.put_file(str(source), f"{self._base}/{name}")

    def prune(self) -> None:
        """Do nothing: a lifecycle rule of the bucket is what bounds it."""


@contextlib.contextmanager
def _s3_problems() -> Iterator[None]:
    """Turn what s3fs and botocore raise into words of ours: theirs may quote URLs and keys."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (OSError, BotoCoreError, ClientError) as exc:
        raise StoreProblem(_reason(exc)) from exc


def _reason(exc: Exception) -> str:
    known = {
        "EndpointConnectionError": "it cannot be reached",
        "ConnectTimeoutError": "it cannot be reached",
        "ReadTimeoutError": "it does not answer in time",
        "NoCredentialsError": "there are no AWS credentials",
        "PermissionError": "access is denied",
        "FileNotFoundError": "there is no such bucket",
    }
    if type(exc).__name__ in known:
        return known[type(exc).__name__]
    if isinstance(exc, OSError) and exc.errno:
        return os.strerror(exc.errno)
    return type(exc).__name__
