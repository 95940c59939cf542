"""What is on a target now, and how it differs from what is built. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.client.types import ModelState, ServerInfo
from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.drift import config_differences, served_versions
from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.deploy.lock import LockOwner
from triton_toolkit.deploy.run import auth_headers
from triton_toolkit.deploy.source import changed_sources, read_built
from triton_toolkit.deploy.store import CANDIDATE_PREFIX, Store
from triton_toolkit.errors import RepositoryError, TritonToolkitError
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project

NOT_DEPLOYED = "not deployed"
"""The entry of ``ModelStatus.drift`` for what is built here and not on the target."""

_RECENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """One version of a model: on the target's disk, on the server, or both.

    ``state`` is the index's (READY, UNAVAILABLE, LOADING, UNLOADING), empty where the server never
    loaded it; ``damage`` lists what differs from its passport.
    """

    number: int
    state: str
    reason: str
    on_disk: bool
    passport: Passport | None
    damage: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, with what matters of the passport."""
        passport = None
        if self.passport is not None:
            names = ("kind", "variant", "backend", "created", "release", "tools", "onnx", "accuracy")
            passport = {name: getattr(self.passport, name) for name in names}
        return {
            "state": self.state,
            "reason": self.reason,
            "on_disk": self.on_disk,
            "passport": passport,
            "damage": list(self.damage),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model: its versions, the version built here, and what is not as it should be."""

    name: str
    versions: tuple[VersionStatus, ...]
    built: int | None
    drift: tuple[str, ...]

    @property
    def serving(self) -> tuple[int, ...]:
        """The versions that are READY."""
        return tuple(version.number for version in self.versions if version.state == "READY")

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; ``versions`` by number."""
        return {
            "versions": {str(version.number): version.as_dict() for version in self.versions},
            "serving": list(self.serving),
            "built": self.built,
            "drift": list(self.drift),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """A target: its server, its models, who deploys to it now, and what dead deployments left.

    ``verified`` says whether the files were hashed. ``mismatch`` says why the server does not seem to
    read the store; empty when all fits.
    """

    target: str
    store: str
    url: str
    server: ServerInfo
    ready: bool
    mismatch: str
    verified: bool
    models: tuple[ModelStatus, ...]
    lock: LockOwner | None
    leftovers: tuple[str, ...]
    deployments: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; ``models`` by name, ``deployments`` the latest last."""
        owner = self.lock
        return {
            "target": self.target,
            "store": self.store,
            "url": self.url,
            "server": {"version": self.server.version, "ready": self.ready},
            "mismatch": self.mismatch,
            "verified": self.verified,
            "models": {model.name: model.as_dict() for model in self.models},
            "lock": None
            if owner is None
            else {"user": owner.user, "host": owner.host, "pid": owner.pid, "since": owner.since},
            "leftovers": list(self.leftovers),
            "deployments": list(self.deployments),
        }


def read_status(
    project: Project,
    target_name: str,
    *,
    verify: bool = False,
    call_timeout_s: float = 10.0,
    store: Store | None = None,
) -> TargetStatus:
    """Ask a target's store and server what they hold, and compare it with what is built.

    Args:
        project: The loaded spec.
        target_name: A target of the spec.
        verify: Whether to hash the files of every version, and so to find damaged ones.
        call_timeout_s: Deadline of each call to the server.
        store: Where the server's repository is; the target's ``store`` folder where left out.

    Raises:
        SpecError: No such target.
        EnvironmentProblem: The store is not there.
        ServerError: The server cannot be reached.
    """
    target = project.target(target_name)
    place = store or LocalStore(project.root / target.store, url=target.servers[0])
    place.check_present()
    headers = auth_headers(target)
    with TritonClient(target.servers[0], timeout_s=call_timeout_s, headers=headers) as client:
        info, ready = client.server(), client.is_ready()
        index = [state for state in client.index() if not state.name.startswith(CANDIDATE_PREFIX)]
        on_disk = set(place.models())
        loaded = {state.name for state in index if state.version}
        names = sorted({*project.spec.models, *on_disk, *loaded})
        reader = _Reader(project=project, store=place, client=client, index=index, verify=verify)
        models = tuple(reader.model(name) for name in names)
    return TargetStatus(
        target=target_name,
        store=place.location,
        url=client.url,
        server=info,
        ready=ready,
        mismatch=_mismatch(place, index),
        verified=verify,
        models=models,
        lock=place.lock_owner(),
        leftovers=tuple(place.candidates()),
        deployments=tuple(place.read_log()[-_RECENT:]),
    )


def _mismatch(store: Store, index: Sequence[ModelState]) -> str:
    """Return why a server does not seem to read a store, from what both list; "" when all fits.

    Two repositories that list the same cannot be told apart without writing; ``tt deploy`` does that.
    """
    folders = [name for name in store.folders() if not name.startswith(CANDIDATE_PREFIX)]
    unseen = sorted(set(folders) - {state.name for state in index})
    if unseen:
        return f"it does not list {', '.join(unseen)}, which the store holds"
    # Without a version, an entry of the index is a folder that the server sees.
    foreign = sorted({state.name for state in index if not state.version} - set(folders))
    if foreign:
        return f"it lists {', '.join(foreign)}, which the store does not hold"
    lost = [
        f"{state.name} version {state.version}"
        for state in index
        if state.ready and int(state.version) not in store.versions(state.name)
    ]
    return f"it serves {', '.join(lost)}, which the store does not hold" if lost else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    project: Project
    store: Store
    client: TritonClient
    index: Sequence[ModelState]
    verify: bool

    def model(self, name: str) -> ModelStatus:
        states = {int(state.version): state for state in self.index if state.name == name and state.version}
        present = self.store.versions(name)
        versions = tuple(
            self._version(name, number, states.get(number), on_disk=number in present)
            for number in sorted({*states, *present})
        )
        try:
            built, drift = self._against_build(name, present)
        except RepositoryError as exc:  # one damaged model is its own line, not the end of all
            built, drift = None, [exc.message]
        drift += [
            f"version {version.number} on the target: {problem}"
            for version in versions
            for problem in version.damage
        ]
        try:
            serving = [item.number for item in versions if item.state == "READY"]
            drift += self._against_server(name, serving)
        except RepositoryError as exc:
            drift.append(exc.message)
        return ModelStatus(name=name, versions=versions, built=built, drift=tuple(dict.fromkeys(drift)))

    def _version(self, name: str, number: int, state: ModelState | None, *, on_disk: bool) -> VersionStatus:
        damage: list[str] = []
        passport = None
        try:
            passport = self.store.passport(name, number) if on_disk else None
        except RepositoryError as exc:
            damage.append(exc.message)
        if passport and self.verify:
            damage += self.store.damage(name, number, passport)
        return VersionStatus(
            number=number,
            state=state.state if state else "",
            reason=state.reason.strip() if state else "",
            on_disk=on_disk,
            passport=passport,
            damage=tuple(damage),
        )

    def _against_build(self, name: str, present: Sequence[int]) -> tuple[int | None, list[str]]:
        """Return the built version, and how the target's latest differs from it."""
        if name not in self.project.spec.models:
            return None, ["not in the spec"] if present else []
        try:
            built = read_built(self.project.repository, name)
        except TritonToolkitError as exc:
            return None, [exc.message]
        drift = changed_sources(self.project.root, built)
        if not present:
            return built.version, [*drift, NOT_DEPLOYED]
        passport = self.store.passport(name, present[-1])
        if passport is None:
            drift.append(f"version {present[-1]} on the target was not deployed by tt")
        elif passport.files != built.passport.files:
            drift.append(
                f"version {present[-1]} on the target is not what is built (version {built.version})"
            )
        if self.store.config_text(name) != built.config_text:
            drift.append("config.pbtxt on the target is not the one that is built")
        return built.version, drift

    def _against_server(self, name: str, serving: Sequence[int]) -> list[str]:
        """Return how what the server runs differs from what lies on the target."""
        text = self.store.config_text(name)
        if text is None:
            return [f"version {number} is served, but the store holds no such model" for number in serving]
        config = parse_config(text, f"{self.store.location}/{name}/config.pbtxt")
        wanted = served_versions(config, self.store.versions(name))
        drift = [f"version {number} is not served" for number in wanted if number not in serving]
        drift += [
            f"version {number} is served, but a reload would drop it"
            if number in self.store.versions(name)
            else f"version {number} is served, but the store does not hold it"
            for number in serving
            if number not in wanted
        ]
        if serving:
            differences = config_differences(config, self.client.model_config(name, str(serving[-1])))
            drift += [f"the server runs another config: {difference}" for difference in differences]
        return drift
