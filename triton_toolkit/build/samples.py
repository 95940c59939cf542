"""Sample inputs from the user's callable, and golden outputs recorded on the embedded server."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import write_text
from triton_toolkit._progress import Progress
from triton_toolkit.build.recipe import Context, Made, interpreter
from triton_toolkit.core.compare import Tolerances, compare_outputs
from triton_toolkit.core.dims import dims_from_json
from triton_toolkit.core.tensors import Extent, TensorSpec
from triton_toolkit.errors import ExportError, MissingDependencyError, RefusedError
from triton_toolkit.repository.layout import CONFIG_NAME
from triton_toolkit.repository.passport import Passport, Samples, read_samples, write_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RUNS_HERE = frozenset({"onnxruntime", "python", ""})
"""Backends that the embedded server has; the empty one is an ensemble's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What a sample must fit: inputs, their dynamic dimensions' [min, opt, max], the batch dimension."""

    inputs: tuple[TensorSpec, ...]
    dims: dict[str, list[int]]
    batch_dim: str | None


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """What a sample callable gave (None without one), and the project files it read."""

    inputs: dict[str, NDArray[Any]] | None
    dependencies: tuple[str, ...]


def load_sample(
    context: Context, name: str, reference: str | None, made: Tensors, progress: Progress
) -> SampleInputs:
    """Call ``module:callable`` in a child process and check its arrays against the inputs.

    Raises:
        ExportError: It does not import, fails, or gives other names, types or shapes.
    """
    if reference is None:
        progress.note(name, "no sample is given, so there will be no golden outputs to compare with")
        return SampleInputs(None, ())
    from triton_toolkit.export.job import ExportJob
    from triton_toolkit.export.run import run_export

    job = ExportJob(
        root=context.project.root,
        kind="sample",
        source="",
        name=name,
        sample=reference,
        inputs=made.inputs,
        dims={
            name: dim
            for name, dim in dims_from_json(made.dims).items()
            if any(name in tensor.dynamic for tensor in made.inputs)
        },
        batch_dim=made.batch_dim,
        ignored=context.ignored,
        python=interpreter(context, name, "sample", progress),
        trust=context.project.model(name).trust,
    )
    with tempfile.TemporaryDirectory(prefix="tt-sample-") as scratch:
        report = run_export(job, Path(scratch), progress)
        samples = read_samples(Path(scratch))
    return SampleInputs(samples.inputs if samples else None, tuple(report.dependencies))


@dataclass(frozen=True, slots=True)
class Around:
    """What lies around a version in its model's folder: the config, and files beside it."""

    config: str
    files: Mapping[str, Path]


def record_golden(
    context: Context,
    made: Passport,
    around: Around,
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
        write_text(repository / made.model / CONFIG_NAME, around.config)
        (repository / made.model / "1").symlink_to(version_folder.resolve(), target_is_directory=True)
        for name, source in around.files.items():
            (repository / made.model / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / made.model / name).symlink_to(source.resolve())
        for name in _all_steps(context, made.requires):
            (repository / name).symlink_to(context.folder(name).resolve(), target_is_directory=True)
        with EmbeddedServer(ServeOptions(repository=repository, load=(made.model,))) as server:
            reason = server.load_error(made.model)
            if reason:
                raise RefusedError(f"{made.model} does not load on the embedded server: {reason}")
            outputs = _ask_twice(server.grpc_url, made, inputs)
    problem = wrong_answer(made, inputs, outputs)
    if problem:
        raise ExportError(
            f"{made.model} answers its sample otherwise than declared: {problem}",
            hint="correct the model, or its outputs in the spec",
        )
    return Samples(inputs, {tensor.name: outputs[tensor.name] for tensor in made.outputs})


def wrong_answer(
    made: Passport, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
) -> str:
    """Return how an answer differs from what the model declares, in words; empty when it does not.

    Every declared output must be there with its type, its rank and its fixed sizes; a dynamic
    dimension of one name has one size throughout, the batch included; nothing is NaN.
    """
    import numpy as np

    sizes: dict[str, int] = {}
    for tensor in made.inputs:
        sizes |= _named(served_shape(tensor, made.batch_dim), inputs[tensor.name])
    for tensor in made.outputs:
        array, shape = outputs.get(tensor.name), served_shape(tensor, made.batch_dim)
        if array is None:
            return f"it gives no output {tensor.name!r}"
        if array.dtype.name != tensor.dtype.numpy:
            return f"output {tensor.name!r} is {array.dtype.name}, declared {tensor.dtype.numpy}"
        wanted = [sizes.get(extent, size) if isinstance(extent, str) else extent
                  for extent, size in zip(shape, array.shape, strict=False)]  # fmt: skip
        if len(shape) != array.ndim or wanted != list(array.shape):
            declared = [f"{e}={sizes[e]}" if isinstance(e, str) and e in sizes else str(e) for e in shape]
            return f"output {tensor.name!r} has shape {list(array.shape)}, declared [{', '.join(declared)}]"
        sizes |= _named(shape, array)
        if tensor.dtype.is_float and bool(np.isnan(array).any()):
            return f"output {tensor.name!r} has NaN in {int(np.isnan(array).sum())} of {array.size} elements"
    return ""


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
    for difference in compare_outputs(second, first, Tolerances.from_dict(made.tolerance)):
        if not difference.ok:
            raise ExportError(
                f"{made.model}: two equal requests got different answers: "
                f"output {difference.output!r} {difference.problem}",
                hint="remove the randomness or state from the model, or its deployment cannot be checked",
            )
    return first


def _named(shape: Sequence[Extent], array: NDArray[Any]) -> dict[str, int]:
    """Return the sizes that an array gives to the named dimensions of its shape."""
    return {name: size for name, size in zip(shape, array.shape, strict=True) if isinstance(name, str)}


def served_shape(tensor: TensorSpec, batch_dim: str | None) -> tuple[Extent, ...]:
    """Return a tensor's shape as clients see it.

    Triton has no tensor without a dimension of its own: where a model's tensor is a scalar, alone or
    one a row of the batch, its config says ``dims: [1]``.
    """
    own = tensor.shape[1:] if batch_dim is not None else tensor.shape
    return tensor.shape if own else (*tensor.shape, 1)


def samples_as_served(folder: Path, made: Made) -> None:
    """Give the golden arrays of an exported model the shapes that clients send and receive."""
    samples = read_samples(folder)
    if samples is None:
        return
    tensors = {tensor.name: tensor for tensor in (*made.inputs, *made.outputs)}

    def reshaped(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        ranks = {name: len(served_shape(tensors[name], made.batch_dim)) for name in arrays}
        return {n: a if a.ndim == ranks[n] else a.reshape(*a.shape, 1) for n, a in arrays.items()}

    write_samples(folder, Samples(reshaped(samples.inputs), reshaped(samples.outputs)))
