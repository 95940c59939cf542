"""Wait, after a deployment, until the server is through with the old versions.

A load call returns when the new version answers. The old one is then still finishing its requests
and being unloaded, and until it is gone the server calls itself not ready (seen with 2.51).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.client.types import ModelState

_POLL_S = 0.05


def wait_until_settled(
    client: TritonClient, wanted: Mapping[str, Sequence[int]], *, was_ready: bool, wait_s: float
) -> tuple[bool, list[str]]:
    """Wait until models serve these versions and no others, and the server is ready.

    Args:
        client: The server.
        wanted: Model -> versions that stay.
        was_ready: Whether it was ready before. A load that failed, of whatever model, keeps a server from
            being ready until it is restarted (seen with 2.51, unloaded or not), so this is not waited for.
        wait_s: The longest to wait. Ctrl-C ends the wait too: the deployment is done.

    Returns:
        Whether the server is ready, and notes on what had not left by then, or keeps it from ready.

    Raises:
        ServerError: The server cannot be reached any more.
    """
    deadline = time.monotonic() + wait_s
    try:
        while True:
            index = client.index()
            leaving = _leaving(index, wanted)
            ready = client.is_ready()
            done = not leaving and (ready or not was_ready)
            if done or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return False, ["deployed; ctrl-C ended the wait until the old version had left"]
    notes = [f"{state.name}: version {state.version} is still {state.state}" for state in leaving]
    if not ready:
        reason = f" after {wait_s:g} s" if was_ready else ", as before: a load failed since it was started"
        notes.append(f"the server is not ready{reason}")
    return ready, notes


def _leaving(index: Sequence[ModelState], wanted: Mapping[str, Sequence[int]]) -> list[ModelState]:
    """Return the versions that come or go, or are about to go."""
    return [
        state
        for state in index
        if state.version
        and state.name in wanted
        and (
            state.state in ("LOADING", "UNLOADING")
            or (state.ready and int(state.version) not in wanted[state.name])
        )
    ]
