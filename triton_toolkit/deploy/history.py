"""The deployment log on the target: one line a deployment, appended, never changed. No secrets."""

from __future__ import annotations

import socket
from typing import Any

from triton_toolkit import __version__
from triton_toolkit._files import sha256_bytes
from triton_toolkit.client.types import ServerInfo
from triton_toolkit.deploy.lock import user_name, utc_now
from triton_toolkit.deploy.plan import DeployPlan


def log_entry(target: str, server: ServerInfo, plan: DeployPlan) -> dict[str, Any]:
    """Return who deploys what, when and where; the caller adds verdict, reason and seconds."""
    return {
        "time": utc_now(),
        "user": user_name(),
        "host": socket.gethostname(),
        "tt": __version__,
        "target": target,
        "server": f"Triton {server.version}",
        "deployment": plan.deployment,
        "models": [
            {
                "name": model.name,
                "action": model.action.value,
                "version": model.version,
                "previous": list(model.serving),
                "built_version": model.built.version,
                "files_sha256": model.built.files_sha256,
                "config_sha256": sha256_bytes(model.built.config_text.encode()),
            }
            for model in plan.models
        ],
    }
