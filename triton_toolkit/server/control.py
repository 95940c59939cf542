"""The few requests that starting a server needs, over plain HTTP with the standard library.

Everything else goes through ``triton_toolkit.client``, which stands above this package's needs: a
server that is only just starting, addressed by its own port.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from triton_toolkit.core.addresses import model_path
from triton_toolkit.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A model version as the server sees it."""

    name: str
    version: str
    """Empty where the server knows only the name."""
    state: str
    """``READY``, ``UNAVAILABLE``, ``LOADING`` …; ``UNLOADED`` where the server gives none."""
    reason: str
    """Why it is not READY, in the server's words; or empty."""

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self.state == "READY"

    def as_dict(self) -> dict[str, str]:
        """Return it for ``--json``."""
        return {"name": self.name, "version": self.version, "state": self.state, "reason": self.reason}


class Control:
    """Requests to one server. A method opens its own connection, so threads may share it."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def index(self, timeout_s: float) -> list[ModelReport]:
        """Return all models of the repository, loaded or not."""
        _, value = self._post("/v2/repository/index", timeout_s)
        return [
            ModelReport(
                name=str(entry["name"]),
                version=str(entry.get("version", "")),
                state=str(entry.get("state", "UNLOADED")),
                reason=str(entry.get("reason", "")),
            )
            for entry in value
        ]

    def load(self, model: str, timeout_s: float) -> str:
        """Load a model; return "" or the server's refusal. The call lasts until it is loaded."""
        try:
            path = f"/v2/repository{model_path(model)}/load"
        except UsageError as exc:  # the other models can be loaded all the same
            return exc.message
        status, value = self._post(path, timeout_s)
        if status == http.HTTPStatus.OK:
            return ""
        return str(value.get("error", "")) or f"HTTP status {status}"

    def _post(self, path: str, timeout_s: float) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request("POST", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        return response.status, json.loads(body) if body else {}
