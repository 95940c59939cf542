"""The second half of an export: everything that is proven about the written file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import compare_outputs
from triton_toolkit.core.dims import Sizes, proof_sizes
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.accuracy import Metric, check_accuracy
from triton_toolkit.export.clean import write_graph
from triton_toolkit.export.context import Candidate, Context
from triton_toolkit.export.diagnose import diagnose
from triton_toolkit.export.exported import Exported
from triton_toolkit.export.exporters import both
from triton_toolkit.export.graph import free_output_sizes, load_graph, unused_inputs, versions_of
from triton_toolkit.export.independence import check_independence, distinct_rows, independence_sizes
from triton_toolkit.export.job import ExportReport
from triton_toolkit.export.locate import first_nonfinite
from triton_toolkit.export.memory import other_values
from triton_toolkit.export.parity import Proof, prove
from triton_toolkit.export.samples import format_sizes
from triton_toolkit.export.session import RunFailed
from triton_toolkit.export.shapes import settle_outputs
from triton_toolkit.export.source import load_callable
from triton_toolkit.repository.passport import Samples, write_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def prove_candidate(context: Context, candidate: Candidate) -> ExportReport:
    """Compare, check the batching, measure the accuracy, and write the golden samples.

    Raises:
        ExportError: The model fails at a size, or its outputs are not the declared ones.
        ParityError: The export differs, cannot be batched, or loses accuracy.
    """
    golden = candidate.maker.golden_sizes(context.job.batch_dim)
    proof = _compare(context, candidate, golden)
    outputs = settle_outputs(candidate.outputs, context.job, proof.shapes)
    model = load_graph(context.path)
    if context.job.kind == "torch" and free_output_sizes(model, outputs):
        write_graph(model, context.path)
    _check_rows(context, candidate)
    accuracy = _accuracy(context, candidate)
    _write_golden(context, candidate, golden)
    for name in unused_inputs(model):
        context.note(f"input {name!r} has no effect on any output")
    return ExportReport(
        inputs=candidate.inputs,
        outputs=outputs,
        dims=candidate.dims,
        onnx=versions_of(model) | ({"exporter": candidate.exported.exporter} if candidate.exported else {}),
        parity=proof.entries,
        accuracy=accuracy,
        notes=tuple(context.notes),
    )


def _compare(context: Context, candidate: Candidate, golden: Sizes) -> Proof:
    exported = candidate.exported
    cases = cases_of(candidate, golden)
    context.step(f"compare with the original at {len(cases)} combination(s) of sizes")
    try:
        proof = prove(
            candidate.predict,
            candidate.session,
            cases,
            context.job.tolerances,
            candidate.sources,
            partial(diagnose, context, candidate),
        )
    except ParityError as exc:
        raise _with_history(exported, _with_bisect(context, exported, exc)) from exc
    _check_values(context, candidate, golden)
    _check_zeros(context, candidate, golden)
    if exported is not None and exported.widened:
        context.note("the model computes in bfloat16, the export in float32")
    for branch in exported.branches if exported else ():
        if not branch.place:
            continue  # in a library; the user cannot do anything about it, nor need to
        at = "; ".join(format_sizes(sizes) for sizes in branch.sizes)
        context.note(f"the export follows the path for {branch}; it is right elsewhere too: at {at}")
    _check_nan(context, candidate, proof, golden)
    return proof


def _check_values(context: Context, candidate: Candidate, sizes: Sizes) -> None:
    """Compare a trace with the model on other values than those that were traced.

    A model of fixed sizes is compared at one combination only, which has the values of the example.
    """
    if candidate.exported is None or candidate.exported.exporter != "torchscript":
        return
    inputs = other_values(candidate.maker.at(sizes))
    try:
        wanted = candidate.predict(inputs, "fails")
    except ExportError:
        return  # inputs that nobody promised to be legal
    try:
        got = candidate.session.predict(inputs)
    except RunFailed as exc:
        raise _with_history(
            candidate.exported, ParityError(f"for other values of the inputs {exc.reason}")
        ) from exc
    for difference in compare_outputs(got, wanted, context.job.tolerances):
        if not difference.ok:
            error = ParityError(
                f"for other values of the inputs output {difference.output!r} {difference.problem}: the "
                "trace holds values of the run that it recorded",
                hint="look for .numpy(), .tolist() or torch.tensor() on something that comes from the inputs",
            )
            raise _with_history(candidate.exported, error)


def _check_zeros(context: Context, candidate: Candidate, sizes: Sizes) -> None:
    """Run the export on zeros, as padding has them: an epsilon decides there that no other inputs show.

    Only a NaN or an infinity where the model has none is refused. Such inputs make norms divide by next to
    nothing, where the rounding of either side may be magnified to any size.
    """
    import numpy as np

    example = candidate.maker.at(sizes)
    floats = {name for name, array in example.items() if np.issubdtype(array.dtype, np.floating)}
    if candidate.exported is None or not floats:
        return
    inputs = {name: np.zeros_like(array) if name in floats else array for name, array in example.items()}
    try:
        wanted = candidate.predict(inputs, "fails")
        got = candidate.session.predict(inputs)
    except (ExportError, RunFailed):
        return  # inputs that nobody promised to be legal
    for name, array in wanted.items():
        if np.isfinite(array).all() and not np.isfinite(got[name]).all():
            infinite = not np.isnan(got[name]).any()
            first = first_nonfinite(context.path, inputs, infinite=infinite, sources=candidate.sources)
            error = ParityError(
                f"for inputs of zeros output {name!r} is not finite, while the model's is"
                + (f"; first in {first}" if first else ""),
                hint="the exporter dropped a small number, such as the epsilon of a division: enlarge it",
            )
            raise _with_history(candidate.exported, _with_bisect(context, candidate.exported, error))


def cases_of(candidate: Candidate, golden: Sizes) -> list[tuple[Sizes, Callable[[], Arrays]]]:
    """Return the sizes at which a candidate is compared with its original, and what makes the inputs."""
    exported = candidate.exported
    wanted = [*proof_sizes(candidate.dims), golden]
    if exported is not None:
        wanted += [*(size for branch in exported.branches for size in branch.sizes), *exported.sizes]
    combinations = [sizes for index, sizes in enumerate(wanted) if sizes not in wanted[:index]]
    return [(sizes, partial(candidate.maker.at, sizes)) for sizes in combinations]


def _with_bisect(context: Context, exported: Exported | None, error: ParityError) -> ParityError:
    if exported is None:
        return error
    how = f"`tt build {context.job.name} --bisect` tries every exporter and opset".replace("  ", " ")
    return ParityError(error.message, hint=f"{error.hint}; {how}" if error.hint else how, detail=error.detail)


def _with_history(exported: Exported | None, error: ParityError) -> ExportError:
    """Return the error with what belongs to it from before the proof."""
    result: ExportError = error
    if exported is not None and exported.widened:
        result = ParityError(
            f"{error.message}. The model computes in bfloat16, which has 8 bits, the export in float32",
            hint="return module.float() from the source to serve what float32 gives, or state how far it may "
            "lie from bfloat16: tolerance: {absolute: 0.01, relative: 0.03}",
            detail=error.detail,
        )
    if exported is not None and exported.refused is not None:
        result = both(exported.refused, result)
    return result


def _check_nan(context: Context, candidate: Candidate, proof: Proof, golden: Sizes) -> None:
    for name in sorted(proof.nan_outputs):
        if not candidate.maker.from_user:
            context.note(
                f"output {name!r} holds NaN for random inputs; a sample function gives a better proof"
            )
            continue
        inputs = candidate.maker.at(golden)
        first = first_nonfinite(context.path, inputs, sources=candidate.sources)
        raise ExportError(
            f"output {name!r} holds NaN for the sample inputs" + (f", first in {first}" if first else ""),
            hint="a served NaN helps nobody: check the sample, or the division or logarithm in forward",
        )


def _check_rows(context: Context, candidate: Candidate) -> None:
    batch_dim = context.job.batch_dim
    if batch_dim is None:
        return
    batch = candidate.dims[batch_dim]
    opt = {name: dim.opt for name, dim in candidate.dims.items()}
    sizes = independence_sizes(opt, batch)
    if sizes is None:
        return
    context.step("check that rows of a batch do not depend on each other")
    inputs = distinct_rows(candidate.maker.at(sizes), candidate.inputs)
    check_independence(partial(_predict_rows, candidate), inputs, sizes, batch, context.job.tolerances)


def _predict_rows(candidate: Candidate, arrays: Arrays) -> Arrays:
    return candidate.predict(arrays, "fails on single rows of a batch")


def _accuracy(context: Context, candidate: Candidate) -> dict[str, Any]:
    job = context.job
    if job.metric is None:
        return {}
    context.step(f"measure {job.metric}")
    metric = Metric(job.metric, load_callable(context.files, job.metric), candidate.inputs, context.files)
    exported = candidate.session.predict if job.served else None
    return check_accuracy(
        metric, lambda arrays: candidate.predict(arrays, "fails"), exported, job.max_absolute_drop
    )


def _write_golden(context: Context, candidate: Candidate, sizes: Sizes) -> None:
    inputs = candidate.maker.at(sizes)
    outputs = candidate.predict(inputs, "fails")
    write_samples(context.out, Samples(inputs, outputs))
