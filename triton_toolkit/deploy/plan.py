"""What a deployment would do: every decision, taken before a byte is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triton_toolkit._files import sha256_file
from triton_toolkit.client.types import ModelState
from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.candidate import candidate_name
from triton_toolkit.deploy.drift import served_versions
from triton_toolkit.deploy.report import Action, ModelResult
from triton_toolkit.deploy.source import BuiltModel, ensemble_steps
from triton_toolkit.deploy.store import Store
from triton_toolkit.deploy.verify import Proof

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What is to be done to one model.

    Attributes:
        built: What is deployed.
        action: Publish a new version, load what lies there, or only verify.
        version: Its number on the target.
        candidate: The name under which it is tried.
        present: Versions on the target's disk now.
        serving: Versions that the server has READY now.
        former_config: The config on the target now; None without.
    """

    built: BuiltModel
    action: Action
    version: int
    candidate: str
    present: tuple[int, ...]
    serving: tuple[int, ...]
    former_config: str | None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.built.name

    @property
    def publishes(self) -> bool:
        """Whether files are written for it."""
        return self.action is Action.PUBLISH

    @property
    def proof(self) -> Proof:
        """What the served version is held to."""
        built = self.built
        return Proof(
            version=self.version, passport=built.passport, samples=built.samples, config=built.config
        )

    def result(self) -> ModelResult:
        """Return the plan as the report's entry."""
        count, size = (len(self.built.files) + len(self.built.beside) + 1, self.built.bytes)
        return ModelResult(
            name=self.name,
            action=self.action,
            version=self.version,
            previous=self.serving,
            built_version=self.built.version,
            files=count if self.publishes else 0,
            bytes=size if self.publishes else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployPlan:
    """All models in dependency order, steps before the ensembles that call them.

    ``dependents`` are ensembles that the server has READY, that call a published model and are not
    part of the deployment: name -> versions.
    """

    deployment: str
    models: tuple[ModelPlan, ...]
    dependents: Mapping[str, tuple[int, ...]]

    @property
    def published(self) -> tuple[ModelPlan, ...]:
        """The models that get a new version."""
        return tuple(model for model in self.models if model.publishes)

    @property
    def tried(self) -> tuple[ModelPlan, ...]:
        """The models that must pass as candidates before any model is published.

        Besides the published ones those that lie there unserved, and the ensembles that stay as they
        are but call a model that is tried: they must answer right through the new steps too.
        """
        found: dict[str, ModelPlan] = {}
        for model in self.models:  # steps come first
            if model.action is not Action.VERIFY or found.keys() & set(model.built.steps):
                found[model.name] = model
        return tuple(found.values())

    @property
    def changed(self) -> tuple[ModelPlan, ...]:
        """The models whose state on the server changes."""
        return tuple(model for model in self.models if model.action is not Action.VERIFY)

    @property
    def loads(self) -> tuple[str, ...]:
        """The load calls, in order.

        Loading an ensemble also loads what is new of its steps, in the same breath (seen with
        2.51). So a step has no call of its own when an ensemble that calls it is loaded too: were
        it loaded first, an ensemble whose wiring changes with it would be unavailable in between.
        """
        names = [model.name for model in self.changed]
        covered = {step for model in self.changed for step in model.built.steps}
        return tuple(name for name in names if name not in covered)

    @property
    def candidates(self) -> dict[str, str]:
        """Model -> candidate, for those that are tried."""
        return {model.name: model.candidate for model in self.tried}

    def calls(self) -> tuple[str, ...]:
        """Return the control calls of a deployment without trouble, in order."""
        names = [model.candidate for model in self.tried]
        trial = [f"load {name}" for name in names] + [f"unload {name}" for name in reversed(names)]
        return (*trial, *(f"load {name}" for name in self.loads))


def make_plan(store: Store, models: Sequence[BuiltModel], index: Sequence[ModelState]) -> DeployPlan:
    """Compare what is built with what is on the target and decide.

    Args:
        store: The target's repository; read only.
        models: What to deploy, in dependency order.
        index: The server's repository index.
    """
    deployment = secrets.token_hex(4)
    plans = tuple(_plan(store, built, index, deployment) for built in models)
    ours = {plan.name for plan in plans}
    published = {plan.name for plan in plans if plan.publishes}
    dependents = {}
    for name, config in live_ensembles(store, index).items():
        if name not in ours and published & set(ensemble_steps(config)):
            dependents[name] = serving_versions(index, name)
    return DeployPlan(deployment=deployment, models=plans, dependents=dependents)


def live_ensembles(store: Store, index: Sequence[ModelState]) -> dict[str, ModelConfig]:
    """Return the configs of the store's ensembles that the server has READY."""
    found = {}
    for name in store.models():
        text = store.config_text(name) if serving_versions(index, name) else None
        if text is not None:
            config = parse_config(text, f"{store.location}/{name}/config.pbtxt")
            if config.HasField("ensemble_scheduling"):
                found[name] = config
    return found


def serving_versions(index: Sequence[ModelState], model: str) -> tuple[int, ...]:
    """Return the versions of a model that are READY, ascending."""
    return tuple(sorted(int(state.version) for state in index if state.name == model and state.ready))


def _plan(store: Store, built: BuiltModel, index: Sequence[ModelState], deployment: str) -> ModelPlan:
    present = tuple(store.versions(built.name))
    serving = serving_versions(index, built.name)
    former_config = store.config_text(built.name)
    # A version may be served whose folder is gone.
    action, version = Action.PUBLISH, max(built.version, max((*present, *serving), default=0) + 1)
    same = _same_content(store, built, present, former_config)
    if same is not None:
        action, version = (Action.VERIFY if same in serving else Action.LOAD), same
    return ModelPlan(
        built=built,
        action=action,
        version=version,
        candidate=candidate_name(deployment, built.name),
        present=present,
        serving=serving,
        former_config=former_config,
    )


def _same_content(
    store: Store, built: BuiltModel, present: tuple[int, ...], former_config: str | None
) -> int | None:
    """Return the version that the target would serve, if it is what was built, byte for byte."""
    if former_config != built.config_text:
        return None
    served = served_versions(built.config, present)
    if not served:
        return None
    passport = store.passport(built.name, served[-1])
    if passport is None or passport.files != built.passport.files:
        return None
    if store.damage(built.name, served[-1], passport):
        return None
    beside = {name: sha256_file(path) for name, path in built.beside.items()}
    wanted = store.beside(built.name)
    return served[-1] if all(wanted.get(name) == sha for name, sha in beside.items()) else None
