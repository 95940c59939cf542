"""The order of a deployment's steps. Undone in reverse: files first, then the server."""

from __future__ import annotations

from triton_toolkit.core.compare import Difference
from triton_toolkit.deploy.plan import DeployPlan
from triton_toolkit.deploy.rehearsal import Rehearse
from triton_toolkit.deploy.steps import (
    Confirm,
    Expose,
    Hide,
    Host,
    Load,
    PublishConfig,
    PublishFiles,
    Restore,
    Stage,
    Try,
    Watch,
    former_proofs,
)
from triton_toolkit.deploy.transaction import Step


def trial_steps(host: Host, plan: DeployPlan, *, rehearse: Rehearse | None) -> list[Step]:
    """Return the steps that try the new versions out of everyone's sight.

    All candidates are there before the first is tried, since an ensemble's needs its steps'. What is
    served already and has no candidate is held to its passport as it is, before anything changes.
    """
    tried = plan.tried
    kept = [model for model in plan.models if tried and model.name not in plan.candidates]
    return [
        *(Confirm(host=host, subject=m.name, proof=m.proof, name="verify what stays") for m in kept),
        *(Stage(host=host, plan=model, candidates=plan.candidates) for model in tried),
        *([rehearse] if rehearse else []),
        *(Expose(host=host, plan=model) for model in tried),
        *(Try(host=host, plan=model, candidates=plan.candidates) for model in tried),
        *(Hide(host=host, plan=model) for model in reversed(tried)),
    ]


def publish_steps(
    host: Host, plan: DeployPlan, found: dict[str, tuple[Difference, ...]], notes: list[str]
) -> list[Step]:
    """Return the steps that put what passed under its own name, and verify it there.

    Args:
        host: The target.
        plan: What is to be done.
        found: Filled with the comparisons of the served answers, by model.
        notes: Added to, where an ensemble outside the deployment answers otherwise than before.
    """
    serving = {model.name: model.serving for model in plan.changed} | dict(plan.dependents)
    former = former_proofs(host, serving)
    published = {model.name for model in plan.published}
    return [
        *([Restore(host=host, plan=plan, former=former)] if plan.changed else []),
        *(PublishFiles(host=host, plan=model) for model in plan.published),
        *(PublishConfig(host=host, plan=model) for model in plan.published),
        *(Load(host=host, subject=name, touch=name not in published) for name in plan.loads),
        *(Confirm(host=host, subject=m.name, proof=m.proof, found=found) for m in plan.models),
        *(Watch(host=host, subject=n, proof=former[n], notes=notes) for n in plan.dependents),
    ]
