"""Take back what a deployment left that ended without a word: killed, or its host went down.

We hold the lock when this runs, so no deployment is alive. What each one did can be read off its
candidates' folders, and whether it had ended well off the log.
"""

from __future__ import annotations

from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.plan import serving_versions
from triton_toolkit.deploy.source import ensemble_steps
from triton_toolkit.deploy.steps import Host
from triton_toolkit.deploy.store import CANDIDATE_PREFIX
from triton_toolkit.errors import RepositoryError


def recover(host: Host) -> list[str]:
    """Remove the candidates of dead deployments, and what they had published before they were done.

    Returns:
        What was found and done, for people.
    """
    notes: list[str] = []
    taken_back: list[str] = []
    candidates = host.store.candidates()
    finished = {
        entry.get("deployment") for entry in host.store.read_log() if entry.get("verdict") == "deployed"
    }
    for candidate in candidates:
        host.client.unload(candidate, host.load_timeout_s)
        publication = host.store.publication(candidate)
        if publication is None or _deployment(candidate) in finished:
            notes.append(f"removed {candidate}, left by a deployment that ended without a word")
            continue
        model = publication.model
        host.store.retract_config(candidate, model)
        host.store.retract_beside(candidate, model, publication.beside)
        host.store.retract_version(candidate, model, publication.version)
        taken_back.append(model)
        notes.append(
            f"{model}: took back version {publication.version} of a deployment that ended without a word"
        )
    for model in _without_folder(host, taken_back):
        taken_back.append(model)
        notes.append(f"{model}: what was served has no folder any more; what lies on disk is served again")
    _serve_again(host, taken_back)
    for candidate in candidates:  # last: killed before, the next deployment still knows what to do
        host.store.discard(candidate)
    return notes


def _without_folder(host: Host, known: list[str]) -> list[str]:
    """Return the models that serve a version whose folder is gone, and that tt deployed.

    A rollback that met a server which did not answer ends so: all files are back, and the rejected
    version is still served.
    """
    index = host.client.index()
    found = []
    for model in sorted({state.name for state in index} - set(known)):
        present = host.store.versions(model)
        gone = set(serving_versions(index, model)) - set(present)
        if present and gone and all(_is_ours(host, model, number) for number in present):
            found.append(model)
    return found


def _is_ours(host: Host, model: str, version: int) -> bool:
    try:
        return host.store.passport(model, version) is not None
    except RepositoryError:  # damaged, or of something else
        return False


def _deployment(candidate: str) -> str:
    return candidate.removeprefix(CANDIDATE_PREFIX).partition("-")[0]


def _serve_again(host: Host, models: list[str]) -> None:
    """Load what lies on disk again, ensembles first: they take their steps along."""
    index = host.client.index()
    for model in sorted(models, key=lambda name: not _is_ensemble(host, name)):
        if not host.store.versions(model):
            host.client.unload(model, host.load_timeout_s)
        elif serving_versions(index, model):
            host.store.touch(model)
            host.client.load(model, host.load_timeout_s)


def _is_ensemble(host: Host, model: str) -> bool:
    text = host.store.config_text(model)
    return text is not None and bool(ensemble_steps(parse_config(text, model)))
