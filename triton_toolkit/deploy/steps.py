"""The steps of a deployment, each small, named, and able to take itself back.

Their fields are plain data and what they did can be read off the store, so that a step can be
undone by another process than the one that did it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.compare import Difference
from triton_toolkit.deploy.candidate import candidate_config, candidate_text
from triton_toolkit.deploy.plan import DeployPlan, ModelPlan
from triton_toolkit.deploy.store import Store
from triton_toolkit.deploy.verify import Proof, answers, as_answered, check_served, watch_dependent
from triton_toolkit.errors import DeployError, ServerError, TritonToolkitError
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


LOAD = "load"
"""Name of the step from which on callers get the new version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A target at hand: its store, its server, and how long a load may take."""

    store: Store
    client: TritonClient
    load_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Copy the model where the server does not look."""

    host: Host
    plan: ModelPlan
    candidates: Mapping[str, str]
    name: str = "copy"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Copy."""
        text = candidate_text(self.plan.built.config, self.candidates)
        self.host.store.stage(self.plan.candidate, self.plan.built, self.plan.version, text)

    def undo(self) -> None:
        """Remove the copy."""
        self.host.store.discard(self.plan.candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose:
    """Let the server see the candidate."""

    host: Host
    plan: ModelPlan
    name: str = "show the server a candidate"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Rename the folder in; nothing is loaded yet."""
        self.host.store.expose(self.plan.candidate)
        if all(state.name != self.plan.candidate for state in self.host.client.index()):
            raise DeployError(
                f"{self.host.client.url} does not see a folder that was put into {self.host.store.location}: "
                "the server reads another model repository",
                hint="let the target's `store` be the folder that the server was started with "
                "(--model-repository), as seen from here",
            )

    def undo(self) -> None:
        """Unload the candidate and take its folder away, the folder also when the server is gone."""
        try:
            self.host.client.is_live()  # one that hangs is not waited for as long as a load may take
            self.host.client.unload(self.plan.candidate, self.host.load_timeout_s)
        finally:
            self.host.store.discard(self.plan.candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Load the candidate and hold it to its passport, where no client can get its answers."""

    host: Host
    plan: ModelPlan
    candidates: Mapping[str, str]
    name: str = "try the candidate"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Load, compare config and golden answer."""
        plan, client = self.plan, self.host.client
        client.load(plan.candidate, self.host.load_timeout_s)
        proof = Proof(
            version=plan.version,
            passport=plan.built.passport,
            samples=plan.built.samples,
            config=candidate_config(plan.built.config, self.candidates),
        )
        check_served(client, plan.candidate, proof)

    def undo(self) -> None:
        """Nothing: ``Expose`` unloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hide:
    """Unload the candidate and take its folder out of the server's sight."""

    host: Host
    plan: ModelPlan
    name: str = "unload the candidate"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Unload first: a folder is not taken from under a loaded model."""
        self.host.client.unload(self.plan.candidate, self.host.load_timeout_s)
        self.host.store.hide(self.plan.candidate)

    def undo(self) -> None:
        """Nothing: the staged copy is removed by ``Stage``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Remember what is served; undone last, when all files are back, it has the server serve that again."""

    host: Host
    plan: DeployPlan
    former: Mapping[str, Proof]
    answered: dict[str, Proof] = field(default_factory=dict)
    name: str = "remember what is served"
    subject: str = "server"

    def do(self) -> None:
        """See what the models that will change answer now, which may be other than their samples say."""
        for name, proof in self.former.items():
            if name not in self.plan.dependents:
                self.answered[name] = as_answered(self.host.client, name, proof)

    def undo(self) -> None:
        """Load the former versions and prove by their answers that they are served."""
        problems: list[Exception] = []
        for action in self._actions():
            try:
                action()
            except (TritonToolkitError, OSError) as exc:
                problems.append(exc)
                if isinstance(exc, ServerError) and not answers(self.host.client):
                    break  # each further call would wait for its deadline
        if problems:
            down = all(isinstance(problem, ServerError) for problem in problems)
            raise (ServerError if down else DeployError)("; ".join(map(str, problems)))

    def _actions(self) -> Iterator[Callable[[], object]]:
        client, timeout_s = self.host.client, self.host.load_timeout_s
        for model in self.plan.changed:
            if not model.serving:
                yield partial(client.unload, model.name, timeout_s)
        for name in self._reloads():
            yield partial(self._reload, name)
        for name, proof in self.former.items():
            check = watch_dependent if name in self.plan.dependents else check_served
            yield partial(check, client, name, self.answered.get(name, proof))

    def _reload(self, name: str) -> None:
        self.host.store.touch(name)
        self.host.client.load(name, self.host.load_timeout_s)

    def _reloads(self) -> Iterable[str]:
        served = [model.name for model in self.plan.changed if model.serving]
        return (*served, *self.plan.dependents)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFiles:
    """Put version folder, label files and the like in place; the config still serves the old version."""

    host: Host
    plan: ModelPlan
    name: str = "publish the files"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Rename the version folder in, then the files beside it."""
        plan, store = self.plan, self.host.store
        store.publish_version(plan.candidate, plan.name, plan.version)
        store.publish_beside(plan.candidate, plan.name, tuple(plan.built.beside))

    def undo(self) -> None:
        """Rename all of it out again."""
        plan, store = self.plan, self.host.store
        store.retract_beside(plan.candidate, plan.name, tuple(plan.built.beside))
        store.retract_version(plan.candidate, plan.name, plan.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishConfig:
    """Put ``config.pbtxt`` in place, after the files that it speaks of."""

    host: Host
    plan: ModelPlan
    name: str = "publish the config"

    @property
    def subject(self) -> str:
        """The model."""
        return self.plan.name

    def do(self) -> None:
        """Rename it in."""
        self.host.store.publish_config(self.plan.candidate, self.plan.name)

    def undo(self) -> None:
        """Rename the former one back."""
        self.host.store.retract_config(self.plan.candidate, self.plan.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Have the server load what lies there now; it moves requests over without dropping one."""

    host: Host
    subject: str
    touch: bool
    name: str = LOAD

    def do(self) -> None:
        """Load; a model whose files lay there before is dated anew, so that the load acts."""
        if self.touch:
            self.host.store.touch(self.subject)
        self.host.client.load(self.subject, self.host.load_timeout_s)

    def undo(self) -> None:
        """Nothing: ``Restore`` loads what was there before, once the files are back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Hold the served model to its passport, under its own name."""

    host: Host
    subject: str
    proof: Proof
    found: dict[str, tuple[Difference, ...]] = field(default_factory=dict)
    name: str = "verify what is served"

    def do(self) -> None:
        """Check state, config, version and golden answer; keep the comparison for the report."""
        self.found[self.subject] = check_served(self.host.client, self.subject, self.proof)

    def undo(self) -> None:
        """Nothing: it only looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """See that an ensemble outside the deployment, which calls a model of it, still works."""

    host: Host
    subject: str
    proof: Proof
    notes: list[str]
    name: str = "watch an ensemble that calls it"

    def do(self) -> None:
        """Send its golden sample; an answer that changed is noted, as its step was meant to change."""
        self.notes.extend(watch_dependent(self.host.client, self.subject, self.proof))

    def undo(self) -> None:
        """Nothing: it only looked."""


def former_proofs(host: Host, serving: Mapping[str, tuple[int, ...]]) -> dict[str, Proof]:
    """Return what proves that models serve what they serve now; those that serve nothing are left out.

    A version without a passport (not deployed by ``tt``) is held to its state alone. The config is
    not compared: what was served before is right by definition.
    """
    proofs = {}
    for name, versions in serving.items():
        if versions:
            passport = host.store.passport(name, versions[-1])
            proofs[name] = Proof(
                version=versions[-1],
                passport=passport or _no_passport(name),
                samples=host.store.samples(name, versions[-1]) if passport else None,
            )
    return proofs


def _no_passport(name: str) -> Passport:
    return Passport(model=name, kind="", variant="", backend="", created="", tools={}, key={})
