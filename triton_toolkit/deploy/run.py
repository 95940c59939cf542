"""Deploy: plan, preflight, try, publish, verify; or everything back as it was."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress
from triton_toolkit.client.triton import CONTROL_TIMEOUT_S, TritonClient
from triton_toolkit.client.types import ServerInfo
from triton_toolkit.core.compare import Difference
from triton_toolkit.deploy.drift import served_versions
from triton_toolkit.deploy.history import log_entry
from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.deploy.plan import DeployPlan, make_plan
from triton_toolkit.deploy.preflight import (
    check_models,
    check_plan,
    check_reads_store,
    check_release,
    check_server,
)
from triton_toolkit.deploy.recovery import recover
from triton_toolkit.deploy.rehearsal import Rehearse, rehearsable
from triton_toolkit.deploy.report import DeployReport, ModelResult
from triton_toolkit.deploy.sequence import publish_steps, trial_steps
from triton_toolkit.deploy.settle import wait_until_settled
from triton_toolkit.deploy.source import BuiltModel, changed_sources, read_with_steps
from triton_toolkit.deploy.steps import LOAD, Host
from triton_toolkit.deploy.store import Store
from triton_toolkit.deploy.transaction import Transaction
from triton_toolkit.deploy.verify import answers
from triton_toolkit.errors import (
    DeployError,
    EnvironmentProblem,
    ServerError,
    ServerTimeoutError,
    TritonToolkitError,
)

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project
    from triton_toolkit.spec.models import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """What to deploy and how.

    Attributes:
        names: Models to deploy, with the steps that their ensembles call; all of the spec without.
        rehearsal: Whether to try the files on a private embedded server first, where one can run.
        dry_run: Plan and check, write nothing.
        call_timeout_s: Deadline of a call that should be answered at once.
        load_timeout_s: Deadline of a load or an unload.
        lock_wait_s: How long to wait for another deployment to the same store.
        settle_s: How long to wait, once all is done, until the old version has left.
    """

    names: tuple[str, ...] = ()
    rehearsal: bool = True
    dry_run: bool = False
    call_timeout_s: float = 10.0
    load_timeout_s: float = CONTROL_TIMEOUT_S
    lock_wait_s: float = 10.0
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    """What is known once the target was reached."""

    target_name: str
    target: Target
    options: DeployOptions
    host: Host
    info: ServerInfo
    was_ready: bool
    models: Sequence[BuiltModel]
    progress: Progress


def run_deploy(
    project: Project,
    target_name: str,
    options: DeployOptions,
    progress: Progress,
    *,
    store: Store | None = None,
) -> DeployReport:
    """Deploy models to a target of the spec: all of them, or none.

    Each new version is tried on the target's server under a name that nobody knows (and before
    that, where possible, on a private server), so that no client gets an answer of a version that
    does not pass. Then it is published, loaded and verified under its own name; whatever goes wrong
    from there on, the former version is served again.

    Args:
        project: The loaded spec, with the repository that ``tt build`` wrote.
        target_name: A target of the spec.
        options: What to deploy and how.
        progress: Told about each step.
        store: Where the server's repository is; the target's ``store`` folder where left out.

    Raises:
        SpecError: No such model or target.
        ServerError: The server cannot be reached or controlled, or it died or hung on the way; says what
            stands.
        EnvironmentProblem: The store cannot be written or has no room; all is as before.
        DeployError: The new versions were refused, or rolled back; says what happened.
        KeyboardInterrupt: After everything was taken back.
    """
    target = project.target(target_name)
    for name in options.names:
        project.model(name)
    place = store or LocalStore(project.root / target.store, url=target.servers[0])
    models = read_with_steps(project.repository, options.names or tuple(project.spec.models))
    notes = check_models(models)
    notes += [f"{model.name}: {text}" for model in models for text in changed_sources(project.root, model)]
    place.check_usable()
    headers = auth_headers(target)
    with TritonClient(target.servers[0], timeout_s=options.call_timeout_s, headers=headers) as client:
        progress.step(target_name, f"checking {client.url}")
        deployment = _Deployment(
            target_name=target_name,
            target=target,
            options=options,
            host=Host(store=place, client=client, load_timeout_s=options.load_timeout_s),
            info=check_server(client),
            was_ready=client.is_ready(),
            models=models,
            progress=progress,
        )
        check_reads_store(client, place)
        notes += check_release(deployment.info, target.release, models)
        if options.dry_run:
            return _planned(deployment, notes)
        with place.lock(wait_s=options.lock_wait_s) as dead:
            if dead is not None:
                notes.append(f"took over the lock of a deployment that ended without a word: {dead}")
            return _deploy(deployment, notes)


def auth_headers(target: Target) -> dict[str, str]:
    """Return the headers of a target, their values from the environment.

    Raises:
        EnvironmentProblem: A variable is not set.
    """
    headers = {}
    for header, entry in target.auth.items():
        if entry.env not in os.environ:
            raise EnvironmentProblem(
                f"environment variable {entry.env} is not set; `auth` of the target takes {header!r} from it",
                hint=f"export {entry.env}=…",
            )
        headers[header] = os.environ[entry.env]
    return headers


def _planned(deployment: _Deployment, notes: list[str]) -> DeployReport:
    store, client = deployment.host.store, deployment.host.client
    index = client.index()
    plan = make_plan(store, deployment.models, index)
    notes += check_plan(store, plan, index)
    results = [model.result() for model in plan.models]
    return _report(deployment, "planned", results, notes, plan=plan)


def _deploy(deployment: _Deployment, notes: list[str]) -> DeployReport:
    """Deploy while holding the lock."""
    host, progress = deployment.host, deployment.progress
    notes += recover(host)
    index = host.client.index()
    plan = make_plan(host.store, deployment.models, index)
    notes += check_plan(host.store, plan, index)
    found: dict[str, tuple[Difference, ...]] = {}
    transaction = Transaction(progress)
    steps = [
        *trial_steps(host, plan, rehearse=_rehearse(deployment, plan, notes)),
        *publish_steps(host, plan, found, notes),
    ]
    with _logged(deployment, plan, transaction) as entry:
        transaction.run(steps)
        entry["verdict"] = "deployed" if plan.changed else "already deployed"
    ready = _settle(deployment, plan, notes)
    results = _finish(deployment, plan, found, notes)
    for note in notes:
        progress.note(deployment.target_name, note)
    report = _report(deployment, entry["verdict"], results, notes, plan=plan, transaction=transaction)
    return dataclasses.replace(report, ready=ready)


def _rehearse(deployment: _Deployment, plan: DeployPlan, notes: list[str]) -> Rehearse | None:
    if not plan.tried or not deployment.options.rehearsal:
        return None
    models, why_not = rehearsable(plan)
    notes += why_not
    progress = deployment.progress
    return Rehearse(host=deployment.host, plan=plan, models=models, progress=progress) if models else None


@contextmanager
def _logged(deployment: _Deployment, plan: DeployPlan, transaction: Transaction) -> Iterator[dict[str, Any]]:
    """Write the deployment into the target's log, and make an error tell what was taken back."""
    started = time.monotonic()
    entry: dict[str, Any] = {"verdict": "failed"}
    try:
        yield entry
    except BaseException as exc:
        interrupted = isinstance(exc, KeyboardInterrupt)
        entry |= {"verdict": "interrupted" if interrupted else "failed", "reason": str(exc)}
        entry |= {"not_undone": transaction.undo_problems, "seconds": time.monotonic() - started}
        _append_log(deployment, plan, entry)
        if isinstance(exc, TritonToolkitError):
            raise _failure(exc, deployment.host.client, plan, transaction) from exc
        deployment.progress.note(deployment.target_name, _aftermath(plan, transaction))
        raise
    entry["seconds"] = time.monotonic() - started
    _append_log(deployment, plan, entry)


def _append_log(deployment: _Deployment, plan: DeployPlan, entry: dict[str, Any]) -> None:
    """Add the log's line; a store that cannot even take that is noted, and no reason to fail."""
    line = log_entry(deployment.target_name, deployment.info, plan) | entry
    try:
        deployment.host.store.append_log(line)
    except EnvironmentProblem as exc:
        deployment.progress.note(deployment.target_name, f"the deployment log was not written: {exc}")


def _failure(
    exc: TritonToolkitError, client: TritonClient, plan: DeployPlan, transaction: Transaction
) -> TritonToolkitError:
    """Return the error to raise for one that stopped the deployment."""
    message = f"{exc.message.rstrip('.')}. {_aftermath(plan, transaction)}"
    detail = "\n".join(filter(None, (exc.detail, *transaction.undo_problems)))
    for name, candidate in plan.candidates.items():  # nobody knows a candidate by its name
        message, detail = message.replace(candidate, name), detail.replace(candidate, name)
    return _kind(exc, client)(message, hint=exc.hint, detail=detail)


def _kind(exc: TritonToolkitError, client: TritonClient) -> type[TritonToolkitError]:
    """Return the class of the error: by whose fault it was, the host's, the server's, or the new version's.

    What does not answer in time is the new version where the server answers other calls, and the server
    where it does not. A server that is gone by now could not be brought back to the former version.
    """
    if isinstance(exc, EnvironmentProblem):
        return EnvironmentProblem
    if isinstance(exc, ServerError) and not isinstance(exc, ServerTimeoutError):
        return ServerError
    return DeployError if answers(client) else ServerError


def _aftermath(plan: DeployPlan, transaction: Transaction) -> str:
    if transaction.undo_errors:
        if all(isinstance(exc, ServerError) for exc in transaction.undo_errors):
            return (
                "All files are as they were, but the server did not answer when it was to serve them again: "
                "look at it with `tt status`, or restart it"
            )
        return "Not all could be put back; see below"
    loaded = any(record.step == LOAD and "undone" in record.outcome for record in transaction.records)
    if not loaded:
        return "Nothing was published; the target is as it was"
    served = [
        f"{model.name} version {max(model.serving)}" if model.serving else f"no {model.name}"
        for model in plan.changed
    ]
    return f"Rolled back; served as before: {', '.join(served)}"


def _settle(deployment: _Deployment, plan: DeployPlan, notes: list[str]) -> bool:
    """Wait for the old versions to leave; return whether the server is ready. Takes nothing back."""
    host = deployment.host
    wanted = {m.name: served_versions(m.built.config, host.store.versions(m.name)) for m in plan.models}
    deployment.progress.step(deployment.target_name, "waiting until the server is ready")
    try:
        ready, found = wait_until_settled(
            host.client, wanted, was_ready=deployment.was_ready, wait_s=deployment.options.settle_s
        )
    except TritonToolkitError as exc:
        ready, found = False, [f"deployed, but whether the server is ready is not known: {exc}"]
    notes += found
    return ready


def _finish(
    deployment: _Deployment,
    plan: DeployPlan,
    found: Mapping[str, tuple[Difference, ...]],
    notes: list[str],
) -> list[ModelResult]:
    """Tidy up after the commit; what fails here is noted and takes nothing back."""
    results = []
    for model in plan.models:
        pruned: tuple[int, ...] = ()
        try:
            deployment.host.store.discard(model.candidate)
            if model.publishes:
                pruned = _prune(deployment, model.name)
        except (TritonToolkitError, OSError) as exc:
            notes.append(f"{model.name}: old versions were not removed: {exc}")
        results.append(dataclasses.replace(model.result(), golden=found.get(model.name, ()), pruned=pruned))
    return results


def _prune(deployment: _Deployment, name: str) -> tuple[int, ...]:
    """Remove the oldest versions beyond ``keep``, of those that tt deployed and nobody serves."""
    host, keep = deployment.host, deployment.target.keep
    serving = {state.version for state in host.client.index() if state.name == name and state.ready}
    removed = []
    for number in host.store.versions(name)[:-keep]:
        if str(number) not in serving and host.store.passport(name, number) is not None:
            host.store.remove_version(name, number)
            removed.append(number)
    return tuple(removed)


def _report(
    deployment: _Deployment,
    verdict: str,
    results: Sequence[ModelResult],
    notes: Sequence[str],
    *,
    plan: DeployPlan,
    transaction: Transaction | None = None,
) -> DeployReport:
    return DeployReport(
        target=deployment.target_name,
        store=deployment.host.store.location,
        url=deployment.host.client.url,
        server_version=deployment.info.version,
        verdict=verdict,
        models=tuple(results),
        steps=transaction.records if transaction else (),
        calls=plan.calls(),
        notes=tuple(notes),
    )
