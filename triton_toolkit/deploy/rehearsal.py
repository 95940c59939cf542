"""Try the staged files on a private embedded server before the target's server sees them.

A model can take a server down while it loads (seen with 2.51: a warm-up above the maximum batch
size), and a load that fails may leave GPU memory behind. A private server pays for that instead.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._progress import Progress
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.deploy.plan import DeployPlan, ModelPlan
from triton_toolkit.deploy.source import BuiltModel
from triton_toolkit.deploy.steps import Host
from triton_toolkit.deploy.verify import Proof, check_served
from triton_toolkit.errors import (
    DeployError,
    MissingDependencyError,
    RefusedError,
    ServerError,
    TritonToolkitError,
)
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_BACKENDS = ("onnxruntime", "python")
_PLATFORMS = ("onnxruntime_onnx",)
_ELSEWHERE = "where the model needs what only the target's server has, deploy with --no-rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """Serve the candidates on a private server and hold them to their passports."""

    host: Host
    plan: DeployPlan
    models: tuple[ModelPlan, ...]
    progress: Progress
    name: str = "rehearse on a private server"

    @property
    def subject(self) -> str:
        """The models."""
        return ", ".join(model.name for model in self.models)

    def do(self) -> None:
        """Start the server on the staged folders, load, compare golden answers, stop it."""
        with tempfile.TemporaryDirectory(prefix="tt-rehearsal-") as folder:
            repository = Path(folder)
            for model in self.models:
                (repository / model.candidate).symlink_to(self.host.store.staged(model.candidate))
                for step in set(model.built.steps) - set(self.plan.candidates):
                    if not (repository / step).exists():
                        (repository / step).symlink_to(self.host.store.folder(step))
            self._serve(repository)

    def undo(self) -> None:
        """Nothing: the server ended with the step."""

    def _serve(self, repository: Path) -> None:
        names = tuple(model.candidate for model in self.models)
        options = ServeOptions(
            repository=repository, load=names, ready_timeout_s=self.host.load_timeout_s, exit_timeout_s=3
        )
        try:
            with (
                EmbeddedServer(options) as server,
                TritonClient(server.grpc_url, timeout_s=self.host.client.timeout_s) as client,
            ):
                for model in self.models:
                    self.progress.step(model.name, "checking its answer on the private server")
                    reason = server.load_error(model.candidate)
                    if reason:
                        raise _failed(model, reason.replace(model.candidate, model.name))
                    _check(client, model)
        except ServerError as exc:  # the models brought it down, or hold it up; the target's server is well
            raise DeployError(
                f"{self.subject} on a private server: {exc.message}", hint=_ELSEWHERE, detail=exc.detail
            ) from exc


def rehearsable(plan: DeployPlan) -> tuple[tuple[ModelPlan, ...], list[str]]:
    """Return the models that an embedded server can run, and notes on why the others are left out."""
    try:
        check_available()
    except MissingDependencyError as exc:
        return (), [f"no rehearsal on a private server: {exc.message} ({exc.hint})"]
    reasons = {model.name: _why_not(model.built) for model in plan.tried}
    for model in plan.tried:  # steps come before their ensembles
        lost = next((step for step in model.built.steps if reasons.get(step)), "")
        if lost:
            reasons[model.name] = f"its step {lost!r} is not rehearsed"
    notes = [
        f"{name}: no rehearsal on a private server: {reason}" for name, reason in reasons.items() if reason
    ]
    return tuple(model for model in plan.tried if not reasons[model.name]), notes


def _why_not(built: BuiltModel) -> str:
    config = built.config
    if config.HasField("ensemble_scheduling"):
        return ""
    if config.backend not in _BACKENDS and config.platform not in _PLATFORMS:
        return f"backend {config.backend or config.platform or 'unknown'!r} does not run there"
    return "its instances need a GPU" if _needs_gpu(config) else ""


def _needs_gpu(config: ModelConfig) -> bool:
    return any(group.kind == group.KIND_GPU for group in config.instance_group)


def _check(client: TritonClient, model: ModelPlan) -> None:
    proof = Proof(version=model.version, passport=model.built.passport, samples=model.built.samples)
    try:
        check_served(client, model.candidate, proof)
    except (DeployError, RefusedError) as exc:
        raise _failed(model, exc.message.replace(model.candidate, model.name)) from exc


def _failed(model: ModelPlan, reason: str) -> TritonToolkitError:
    return DeployError(
        f"model {model.name!r} version {model.version} fails on a private server: {reason}",
        hint=_ELSEWHERE,
    )
