"""What can be known to go wrong before a byte is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.client.types import ModelState, ServerInfo
from triton_toolkit.config.message import parse_config
from triton_toolkit.config.rules import Severity, check_config
from triton_toolkit.core.releases import Release, by_triton_version, onnx_limits
from triton_toolkit.core.units import format_bytes
from triton_toolkit.deploy.drift import served_versions
from triton_toolkit.deploy.ensembles import check_built_over, check_dependents, check_steps, rewired
from triton_toolkit.deploy.plan import DeployPlan, ModelPlan
from triton_toolkit.deploy.source import BuiltModel
from triton_toolkit.deploy.store import Store
from triton_toolkit.errors import DeployError, EnvironmentProblem, ServerError
from triton_toolkit.repository.layout import CONFIG_NAME

_SPARE_BYTES = 1 << 20
_NO_SUCH_MODEL = "tt-control-mode-check"
_PROBES = 3


def check_server(client: TritonClient) -> ServerInfo:
    """Check that the server is there and in explicit model control mode.

    The mode is not in the metadata. In explicit mode unloading a name that no model has is
    answered with yes and changes nothing; in the other modes it is refused (seen with 2.51).

    Raises:
        ServerError: It cannot be reached, is not live, or is in another control mode.
    """
    if not client.is_live():
        raise ServerError(f"{client.url} answers, but is not live", hint="is it starting or stopping?")
    info = client.server()
    client.unload(_NO_SUCH_MODEL, client.timeout_s)
    return info


def check_reads_store(client: TritonClient, store: Store) -> None:
    """Check that the server reads this very store, by a folder that it must list while it is there.

    Names and versions prove nothing: another repository may hold the same.

    Raises:
        DeployError: It reads another one.
        EnvironmentProblem: The store cannot be written.
    """
    for _ in range(_PROBES):
        with store.probe() as name:
            listed = any(state.name == name for state in client.index())
            removed = name not in store.folders()  # by a deployment that clears up just now
        if listed:
            return
        if not removed:
            break
    raise DeployError(
        f"{client.url} does not read store {store.location}: it does not list a folder that was put there "
        "for a moment, so it was started on another model repository",
        hint="let `servers` in the target, or --server, name the server that was started on this folder, "
        "or let `store` be that server's folder (--model-repository) as seen from here",
    )


def check_models(models: Sequence[BuiltModel]) -> list[str]:
    """Check what can be known from the built models alone; return what they are warned of.

    Raises:
        DeployError: A config breaks a rule of the server, has another model's name, or is that of an
            ensemble whose step was built anew since.
    """
    check_built_over(models)
    notes = []
    for model in models:
        findings = check_config(model.config)
        problems = [str(finding) for finding in findings if finding.severity is Severity.ERROR]
        if model.config.name != model.name:
            problems.append(f"name: {model.config.name!r} is not the name of its folder")
        if problems:
            raise DeployError(
                f"{model.name}/config.pbtxt: {'; '.join(problems)}",
                hint=f"change `serve` of models.{model.name} in the spec and build again",
            )
        notes += [f"{model.name}: {finding}" for finding in findings]
        notes += _unchecked(model)
    return notes


def _unchecked(model: BuiltModel) -> list[str]:
    """Note what of a model's answer has nothing to be compared with."""
    samples = model.samples
    if samples is None:
        return [f"{model.name}: has no golden sample; its outputs are not checked"]
    if not samples.outputs:
        return [
            f"{model.name}: its golden sample has no outputs; that it answers is checked, what it says not"
        ]
    missing = [tensor.name for tensor in model.passport.outputs if tensor.name not in samples.outputs]
    return [f"{model.name}: its golden sample lacks {', '.join(missing)}; not checked"] if missing else []


def check_release(info: ServerInfo, wanted: str | None, models: Iterable[BuiltModel]) -> list[str]:
    """Compare the server's release with what the models were built for; return notes.

    Raises:
        DeployError: An ONNX file needs a newer ONNX Runtime than the server's release has.
    """
    release = by_triton_version(info.version)
    if release is None:
        return [
            f"Triton {info.version} is not in the table of releases: opset and IR version are not checked"
        ]
    notes = []
    if wanted is not None and release.container != wanted:
        notes.append(
            f"the target says release {wanted}, but the server is {release.container} ({info.version})"
        )
    for model in models:
        problem = _too_new(model.passport.onnx, release)
        if problem:
            raise DeployError(
                f"model {model.name!r} cannot run on Triton {info.version} ({release.container}): {problem}",
                hint=f'set `release: "{release.container}"` in the spec and build again',
            )
    return notes


def _too_new(onnx: Mapping[str, Any], release: Release) -> str:
    limits = onnx_limits(release.container)
    runtime = f"ONNX Runtime {release.onnxruntime}"
    opsets = onnx.get("opset", {})
    for domain, limit in (("", limits.opset), ("ai.onnx", limits.opset), ("ai.onnx.ml", limits.ml_opset)):
        found = opsets.get(domain)
        if found is not None and limit is not None and found > limit:
            return f"it has opset {found} of {domain or 'ai.onnx'}, and {runtime} loads {limit} at most"
    ir_version = onnx.get("ir_version")
    if ir_version is not None and limits.ir_version is not None and ir_version > limits.ir_version:
        return f"it has IR version {ir_version}, and {runtime} loads {limits.ir_version} at most"
    return ""


def check_plan(store: Store, plan: DeployPlan, index: Sequence[ModelState]) -> list[str]:
    """Check the plan against what lies on the target and what the server serves; return notes.

    Raises:
        DeployError: A version would not be served, a name is taken, or a live ensemble would break.
        EnvironmentProblem: The store has no room, or does not let a model be replaced.
    """
    notes = [note for model in plan.models for note in _check_model(store, model)]
    _check_permitted(store, plan)
    check_steps(store, plan, index)
    check_dependents(store, plan, index)
    notes += rewired(store, plan)
    needed = sum(model.built.bytes for model in plan.tried)
    free = store.free_bytes()
    if needed and needed + _SPARE_BYTES > free:
        raise EnvironmentProblem(
            f"store {store.location} has {format_bytes(free)} free, and the deployment needs "
            + format_bytes(needed + _SPARE_BYTES),
            hint="free some space, or keep fewer versions (`keep` in the target)",
        )
    return notes


def _check_permitted(store: Store, plan: DeployPlan) -> None:
    """Check the folders of the models that change, and of ensembles that a rollback would load again."""
    for model in plan.changed:
        beside = tuple(model.built.beside) if model.publishes else ()
        store.check_replaceable(model.name, (CONFIG_NAME, *beside))
    for name in plan.dependents:
        store.check_replaceable(name, (CONFIG_NAME,))


def _check_model(store: Store, plan: ModelPlan) -> list[str]:
    name = plan.name
    if plan.serving and name not in store.folders():
        raise DeployError(
            f"the server has a model {name!r} already, whose folder is not in {store.location}",
            hint="is it in another model repository of the server? two models cannot have one name; if its "
            "folder was removed, unload it first",
        )
    after = set(plan.present) | {plan.version}
    if plan.version not in served_versions(plan.built.config, after):
        raise DeployError(
            f"model {name!r}: version {plan.version}, its number on the target, would not be served: "
            "version_policy leaves it out",
            hint=f"set `version_policy` in `serve` of models.{name} to latest",
        )
    _check_restorable(store, plan)
    unmanaged = plan.present and all(store.passport(name, number) is None for number in plan.present)
    return [f"{name}: replaces a model that tt did not deploy"] if plan.publishes and unmanaged else []


def _check_restorable(store: Store, plan: ModelPlan) -> None:
    """A rollback loads what lies on disk: that must be what is served now."""
    if plan.former_config is None or not plan.serving:
        return
    config = parse_config(plan.former_config, f"{store.location}/{plan.name}/config.pbtxt")
    would_serve = served_versions(config, plan.present)
    if would_serve != plan.serving:
        raise DeployError(
            f"model {plan.name!r}: the server serves version {_numbers(plan.serving)}, but would serve "
            f"{_numbers(would_serve)} of what lies in {store.location} after a reload, so that a rollback "
            "could not bring back what is served now",
            hint="load the model if that version is meant to be served, else remove its folder",
        )


def _numbers(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or "none"
