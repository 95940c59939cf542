"""What a deployment must know of ensembles: steps that are there, and wiring that still fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from triton_toolkit.client.types import ModelState
from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.plan import DeployPlan, live_ensembles, serving_versions
from triton_toolkit.deploy.source import BuiltModel, ensemble_steps
from triton_toolkit.deploy.store import Store
from triton_toolkit.errors import DeployError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def check_steps(store: Store, plan: DeployPlan, index: Sequence[ModelState]) -> None:
    """Check that every step of an ensemble is deployed with it or is on the target.

    Raises:
        DeployError: A step is nowhere.
    """
    ours = {model.name for model in plan.models}
    for model in plan.models:
        for step in model.built.steps:
            if step not in ours and not (step in store.folders() or serving_versions(index, step)):
                raise DeployError(
                    f"ensemble {model.name!r} calls model {step!r}, which is neither built nor on the target",
                    hint=f"build {step!r} first",
                )


def check_built_over(models: Iterable[BuiltModel]) -> None:
    """Check that each ensemble was built over the very steps that are deployed with it.

    Its golden sample holds what those steps answered.

    Raises:
        DeployError: A step was built anew since.
    """
    by_name = {model.name: model for model in models}
    for ensemble in by_name.values():
        stale = [
            step
            for step in ensemble.steps
            if step in by_name
            and ensemble.passport.key.get(f"step {step}", by_name[step].passport.identity())
            != by_name[step].passport.identity()
        ]
        if stale:
            steps = ", ".join(f"{step} than version {by_name[step].version}" for step in stale)
            raise DeployError(
                f"model {ensemble.name!r} version {ensemble.version} was built over another {steps}, "
                "the one built now",
                hint=f"run `tt build {ensemble.name}`",
            )


def check_dependents(store: Store, plan: DeployPlan, index: Sequence[ModelState]) -> None:
    """Check that live ensembles which are not part of the deployment still fit their steps.

    Raises:
        DeployError: One would break; says what it uses that is gone.
    """
    configs = {
        name: config for name, config in live_ensembles(store, index).items() if name in plan.dependents
    }
    for model in plan.published:
        if model.former_config is None:
            continue
        former = parse_config(model.former_config, f"{store.location}/{model.name}/config.pbtxt")
        for name, ensemble in configs.items():
            problems = _misfits(ensemble, former, model.built.config)
            if problems:
                raise DeployError(
                    f"the ensemble {name!r}, which is served, calls {model.name!r} and would break: "
                    + "; ".join(problems),
                    hint=f"deploy both together: `tt deploy {model.name} {name}`",
                )


def rewired(store: Store, plan: DeployPlan) -> list[str]:
    """Note the ensembles whose wiring changes together with a step.

    A request that is between two steps when the server swaps both meets a step that does not fit
    (seen with 2.51: 2 of some thousand requests). Triton has no way around it.
    """
    notes = []
    for ensemble in plan.published:
        if ensemble.former_config is None or not ensemble.serving:
            continue
        before = parse_config(ensemble.former_config, f"{store.location}/{ensemble.name}/config.pbtxt")
        for step in plan.published:
            if step.name not in ensemble_steps(before) or step.former_config is None:
                continue
            former = parse_config(step.former_config, f"{store.location}/{step.name}/config.pbtxt")
            if _misfits(before, former, step.built.config):
                notes.append(
                    f"{ensemble.name}: its wiring to {step.name!r} changes, so requests in flight at the "
                    "swap can fail; their callers should try again"
                )
    return notes


def _misfits(ensemble: ModelConfig, former: ModelConfig, new: ModelConfig) -> list[str]:
    """Return what an ensemble uses of a step that the new version has no longer, or has otherwise."""
    problems: list[str] = []
    steps = [step for step in ensemble.ensemble_scheduling.step if step.model_name == new.name]
    for kind, used in (
        ("input", {key for step in steps for key in step.input_map}),
        ("output", {key for step in steps for key in step.output_map}),
    ):
        before = {tensor.name: tensor for tensor in getattr(former, kind)}
        after = {tensor.name: tensor for tensor in getattr(new, kind)}
        for name in sorted(used & set(before)):
            if name not in after:
                problems.append(f"{kind} {name!r} is gone")
            elif (before[name].data_type, list(before[name].dims)) != (
                after[name].data_type,
                list(after[name].dims),
            ):
                problems.append(f"{kind} {name!r} has another type or shape")
    added = [t.name for t in new.input if not t.optional and t.name not in {i.name for i in former.input}]
    problems += [f"input {name!r} is new, and nothing feeds it" for name in added if steps]
    if steps and new.max_batch_size < ensemble.max_batch_size:
        problems.append(
            f"max_batch_size {new.max_batch_size} is below the ensemble's {ensemble.max_batch_size}"
        )
    return problems
