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


def recover(host: Host) -> list[str]:
    """Remove the candidates of dead deployments, and what they had published before they were done.

    Returns:
        What was found and done, for people.
    """
    notes, taken_back = [], []
    finished = {
        entry.get("deployment") for entry in host.store.read_log() if entry.get("verdict") == "deployed"
    }
    for candidate in host.store.candidates():
        host.client.unload(candidate, host.load_timeout_s)
        publication = host.store.publication(candidate)
        if publication is not None and _deployment(candidate) not in finished:
            model = publication.model
            host.store.retract_config(candidate, model)
            host.store.retract_beside(candidate, model, publication.beside)
            host.store.retract_version(candidate, model, publication.version)
            taken_back.append(model)
            notes.append(
                f"{model}: took back version {publication.version}, which a deployment that ended without a "
                "word had published and not verified"
            )
        else:
            notes.append(f"removed {candidate}, left by a deployment that ended without a word")
        host.store.discard(candidate)
    _serve_again(host, taken_back)
    return notes


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
