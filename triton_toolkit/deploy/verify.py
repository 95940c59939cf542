"""Prove that a model version answers as it should: never by the status of a load call alone.

The index must show the version READY, the served config must be the one deployed, and a real
inference of the golden sample must be answered by that version with the right outputs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.compare import Difference, Tolerances, compare_outputs
from triton_toolkit.deploy.drift import config_differences
from triton_toolkit.errors import DeployError, RefusedError, TritonToolkitError
from triton_toolkit.repository.passport import Passport, Samples

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_POLL_S = 0.05
_READY_WAIT_S = 10.0
_INFER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a version is held to. ``samples`` is None where its build had none."""

    version: int
    passport: Passport
    samples: Samples | None
    config: ModelConfig | None = None


def wait_until_ready(client: TritonClient, name: str, version: int, *, wait_s: float = _READY_WAIT_S) -> None:
    """Wait until the index shows exactly this version READY.

    A load call returns when the load is over, so this takes long only when it never will be.

    Raises:
        DeployError: It is not; says what the index shows instead, with the server's reason.
    """
    deadline = time.monotonic() + wait_s
    while True:
        states = [state for state in client.index() if state.name == name and state.version]
        mine = next((state for state in states if state.version == str(version)), None)
        if mine is not None and mine.ready:
            return
        failed = mine is not None and mine.state == "UNAVAILABLE"
        if failed or time.monotonic() >= deadline:
            shown = ", ".join(f"version {state.version} {state.state}" for state in states) or "no version"
            reason = f": {mine.reason.strip()}" if mine is not None and mine.reason else ""
            raise DeployError(
                f"{client.url}: version {version} of model {name!r} is not READY{reason} "
                f"(the index shows {shown})",
                hint="the server's log says more",
            )
        time.sleep(_POLL_S)


def ask_golden(client: TritonClient, name: str, proof: Proof) -> tuple[Difference, ...]:
    """Send the golden sample without naming a version; compare the outputs of the answer.

    Returns:
        One comparison an output, right or wrong; () where there is no sample to send.

    Raises:
        DeployError: Another version answers.
        RefusedError: The server refuses the request or fails to run it.
    """
    if proof.samples is None:
        return ()
    result = client.infer(name, proof.samples.inputs, timeout_s=_INFER_S)
    if result.model_version != str(proof.version):
        raise DeployError(
            f"{client.url}: version {result.model_version} of model {name!r} answers, not {proof.version}",
            hint="does another model repository of the server hold a model of this name?",
        )
    tolerances = Tolerances.from_dict(proof.passport.tolerance)
    return tuple(compare_outputs(result.outputs, proof.samples.outputs, tolerances))


def answers(client: TritonClient) -> bool:
    """Say whether the server takes calls at all."""
    try:
        return client.is_live()
    except TritonToolkitError:
        return False


def as_answered(client: TritonClient, name: str, proof: Proof) -> Proof:
    """Return what a served version is to be held to later, so that it answers as it does now.

    That is its golden sample, where it passes it. An ensemble does not once a step was deployed without it;
    it is held to the answer of now. What cannot answer now is held to its state alone.

    Raises:
        ServerError: The server cannot be reached.
    """
    if proof.samples is None:
        return proof
    try:
        if all(difference.ok for difference in ask_golden(client, name, proof)):
            return proof
        outputs = client.infer(name, proof.samples.inputs, timeout_s=_INFER_S).outputs
    except (DeployError, RefusedError):
        return replace(proof, samples=None)
    expected = {key: value for key, value in outputs.items() if key in proof.samples.outputs}
    return replace(proof, samples=Samples(proof.samples.inputs, expected))


def check_served(client: TritonClient, name: str, proof: Proof) -> tuple[Difference, ...]:
    """Check state, config and answer of a served version; return the comparisons of the outputs.

    Raises:
        DeployError: Any of them is not as deployed.
        RefusedError: The server refuses the golden sample.
    """
    wait_until_ready(client, name, proof.version)
    if proof.config is not None:
        served = client.model_config(name, str(proof.version))
        drift = config_differences(proof.config, served)
        if drift:
            raise DeployError(
                f"{client.url}: the config that the server runs for model {name!r} is not the one deployed: "
                + "; ".join(drift),
                hint="a config given with a load call stays until an unload: unload the model, then deploy",
            )
    differences = ask_golden(client, name, proof)
    wrong = [f"{item.output} {item.problem}" for item in differences if not item.ok]
    if wrong:
        raise DeployError(
            f"{client.url}: version {proof.version} of model {name!r} does not answer the golden sample as "
            f"built: {'; '.join(wrong)}",
            hint="build it again, or look for another version of its libraries on the server",
        )
    return differences


def watch_dependent(client: TritonClient, name: str, proof: Proof) -> list[str]:
    """Return a note when a served ensemble answers its golden sample otherwise than when it was built.

    Raises:
        DeployError: It is no longer READY.
        RefusedError: It cannot run any more.
    """
    wait_until_ready(client, name, proof.version)
    differences = ask_golden(client, name, proof)
    if not differences:
        return [f"{name}: has no golden outputs, so what it answers through the new step is not checked"]
    if all(item.ok for item in differences):
        return []
    return [f"{name}: answers its golden sample otherwise than when it was built; build and deploy it too"]
