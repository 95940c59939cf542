"""Sample inputs from the user's callable, and golden outputs recorded on the embedded server."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import write_text
from triton_toolkit._process import run_child
from triton_toolkit._progress import Progress
from triton_toolkit.build.recipe import Context
from triton_toolkit.core.compare import compare_outputs
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError, MissingDependencyError, RefusedError
from triton_toolkit.repository.layout import CONFIG_NAME
from triton_toolkit.repository.passport import Passport, Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RUNS_HERE = frozenset({"onnxruntime", "python", ""})
"""Backends that the embedded server has; the empty one is an ensemble's."""


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """What a sample callable gave (None without one), and the project files it read."""

    inputs: dict[str, NDArray[Any]] | None
    dependencies: tuple[str, ...]


def load_sample(
    context: Context, name: str, reference: str | None, inputs: Sequence[TensorSpec], progress: Progress
) -> SampleInputs:
    """Call ``module:callable`` in a child process and check its arrays against the inputs.

    Raises:
        ExportError: It does not import, fails, or gives other names, types or shapes.
    """
    if reference is None:
        progress.note(name, "no sample is given, so there will be no golden outputs to compare with")
        return SampleInputs(None, ())
    from triton_toolkit.export.sample import read_sample_result, sample_argv

    progress.step(name, f"producing the sample inputs with {reference}")
    with tempfile.TemporaryDirectory(prefix="tt-sample-") as scratch:
        out = Path(scratch)
        child = run_child(sample_argv(context.project.root, reference, out), cwd=context.project.root)
        arrays, dependencies = read_sample_result(out, child, reference)
    for tensor in inputs:
        problem = _problem(arrays, tensor)
        if problem:
            wanted = ", ".join(f"{t.name} {t.dtype.spec} {list(t.shape)}" for t in inputs)
            raise ExportError(
                f"models.{name}.sample: {reference} gives {problem}", hint=f"the model's inputs: {wanted}"
            )
    return SampleInputs({tensor.name: arrays[tensor.name] for tensor in inputs}, dependencies)


def _problem(arrays: dict[str, NDArray[Any]], tensor: TensorSpec) -> str:
    """Return what is wrong with an input's sample, in words; empty when it fits."""
    array = arrays.get(tensor.name)
    if array is None:
        return f"no {tensor.name!r} (it gives {', '.join(arrays) or 'nothing'})"
    if array.dtype.name != tensor.dtype.numpy:
        return f"{tensor.name!r} of type {array.dtype.name}, expected {tensor.dtype.numpy}"
    fixed = [isinstance(extent, int) for extent in tensor.shape]
    fits = len(array.shape) == len(fixed) and all(
        not is_fixed or size == extent
        for size, extent, is_fixed in zip(array.shape, tensor.shape, fixed, strict=True)
    )
    return "" if fits else f"{tensor.name!r} of shape {list(array.shape)}, expected {list(tensor.shape)}"


def record_golden(
    context: Context,
    made: Passport,
    config: str,
    version_folder: Path,
    inputs: dict[str, NDArray[Any]],
    progress: Progress,
) -> Samples | None:
    """Load the model as built on the embedded server and record its answer to the sample inputs.

    The answer is asked for twice: one that changes from call to call is refused, since nothing
    could be compared with it.

    Returns:
        The golden sample; None, with a note, where the embedded server is not installed or does
        not have the model's backend.

    Raises:
        RefusedError: The server does not load the model, or refuses or fails the request.
        ExportError: The two answers differ.
    """
    from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

    if made.backend not in _RUNS_HERE:
        progress.note(made.model, f"no golden outputs: the embedded server has no backend {made.backend!r}")
        return None
    try:
        check_available()
    except MissingDependencyError as exc:
        progress.note(made.model, f"no golden outputs: {exc.message}; {exc.hint}")
        return None
    progress.step(made.model, "recording golden outputs on the embedded server")
    with tempfile.TemporaryDirectory(prefix="tt-golden-") as scratch:
        repository = Path(scratch)
        write_text(repository / made.model / CONFIG_NAME, config)
        (repository / made.model / "1").symlink_to(version_folder.resolve(), target_is_directory=True)
        for name in _all_steps(context, made.requires):
            (repository / name).symlink_to(context.folder(name).resolve(), target_is_directory=True)
        with EmbeddedServer(ServeOptions(repository=repository, load=(made.model,))) as server:
            reason = server.load_error(made.model)
            if reason:
                raise RefusedError(f"{made.model} does not load on the embedded server: {reason}")
            outputs = _ask_twice(server.grpc_url, made, inputs)
    return Samples(inputs, outputs)


def _all_steps(context: Context, names: Sequence[str]) -> list[str]:
    """Return these models and, for ensembles among them, their steps as well."""
    found: list[str] = []
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.append(name)
            passport = context.passport(name)
            todo += passport.requires if passport else []
    return found


def _ask_twice(url: str, made: Passport, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    from triton_toolkit.client.triton import TritonClient

    with TritonClient(url, timeout_s=60.0) as client:
        first, second = (client.infer(made.model, inputs).outputs for _ in range(2))
    for difference in compare_outputs(second, first, **made.tolerance):
        if not difference.ok:
            raise ExportError(
                f"{made.model}: two equal requests got different answers: "
                f"output {difference.output!r} {difference.problem}",
                hint="remove the randomness or state from the model, or its deployment cannot be checked",
            )
    return first
