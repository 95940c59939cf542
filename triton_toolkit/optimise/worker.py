"""The child side: ``python -m triton_toolkit.optimise.worker JOB.json OUT_DIR``.

Makes one variant of a proven FP32 file: in every way that its precision knows, judged on held-out
inputs; the best is taken. Where none passes, nodes get their precision back until one does.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from triton_toolkit import __version__
from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file
from triton_toolkit._progress import Progress
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.accuracy import Metric
from triton_toolkit.export.context import MODEL_NAME
from triton_toolkit.export.graph import load_graph, versions_of
from triton_toolkit.export.samples import resized
from triton_toolkit.export.step_worker import run_worker
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.user_code import UserCode, functions_of
from triton_toolkit.optimise.calibration import data_digest
from triton_toolkit.optimise.data import Data, load_data
from triton_toolkit.optimise.fp16_plan import ASKED
from triton_toolkit.optimise.groups import group_layers
from triton_toolkit.optimise.int8_plan import KEPT
from triton_toolkit.optimise.job import OptimiseJob, OptimiseReport
from triton_toolkit.optimise.judge import Finding, Judge
from triton_toolkit.optimise.methods import Made, Method, methods_for
from triton_toolkit.optimise.patterns import matching_nodes
from triton_toolkit.optimise.search import Judgement, Search, find_kept
from triton_toolkit.optimise.timing import Speed, describe_cpu, time_variant
from triton_toolkit.optimise.trials import Trials
from triton_toolkit.repository.passport import read_samples

_FOR_THE_GATE = "without it in FP32 the variant is not close enough to the original"
_TOOLS = ("onnx", "onnxruntime", "numpy")


@dataclass(slots=True)
class _Stage:
    """One run of the process."""

    job: OptimiseJob
    progress: Progress
    files: ProjectFiles
    functions: UserCode
    scratch: Path
    notes: list[str] = field(default_factory=list)

    @property
    def reference(self) -> Path:
        """The FP32 file."""
        return self.job.exported / MODEL_NAME

    def step(self, text: str) -> None:
        """Tell what is being done now."""
        self.progress.step(self.job.name, f"{self.job.variant}: {text}")

    def note(self, text: str) -> None:
        """Keep something that the user should know, though nothing failed."""
        self.notes.append(text)
        self.progress.note(self.job.name, f"{self.job.variant}: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """A variant as made and judged."""

    name: str
    method: Method
    made: Made
    judgement: Judgement
    findings: tuple[Finding, ...]


def perform(job: OptimiseJob, out: Path, progress: Progress) -> OptimiseReport:
    """Make the variant in this process; ``out`` must exist and be empty.

    Raises:
        ExportError: The user's code or data is at fault, or the model cannot have this precision.
        ParityError: The variant is not close enough to the original, whatever stays in FP32.
        MissingDependencyError: A package of the extras optimise or cpu is not installed.
    """
    files = ProjectFiles(job.root, [*job.ignored, str(job.exported), str(job.state), str(out.resolve())])
    with (
        functions_of(files, python=job.python, trust=job.trust) as functions,
        tempfile.TemporaryDirectory(prefix="tt-optimise-") as scratch,
    ):
        report = _perform(_Stage(job, progress, files, functions, Path(scratch)), out)
        dependencies = [*functions.dependencies(), *functions.missing()]
    versions = {name: metadata.version(name) for name in _TOOLS if name in sys.modules}
    return replace(report, dependencies=dependencies, tools=versions)


def _perform(stage: _Stage, out: Path) -> OptimiseReport:
    job = stage.job
    data = _data(stage)
    judge = _judge(stage, data)
    keep = matching_nodes(stage.reference, job.keep)
    if job.precision != "int8-dynamic":
        stage.step(f"measure ranges on {len(data.fit)} batches")
    methods = methods_for(job, stage.reference, data.fit, stage.progress)
    results = [_try(stage, judge, method, keep) for method in methods]
    best = max(results, key=lambda result: (result.judgement.ok, result.judgement.score))
    if not best.judgement.ok and set(best.method.ends) < set(best.made.lowered):
        results.append(_try(stage, judge, best.method, {*keep, *best.method.ends}, " with its ends in FP32"))
        best = results[-1] if results[-1].judgement.ok else best
    search = None
    if not best.judgement.ok:
        best, search = _search(stage, data, judge, best, keep)
    if not best.made.lowered:
        raise ExportError(
            f"{job.name}: nothing of {job.variant} is in {job.precision}: keep names every layer of it",
            hint="leave something out of keep, or serve fp32",
        )
    best = replace(best, made=_explained(best.made, keep))
    shutil.copytree(best.made.path.parent, out, dirs_exist_ok=True)
    stage.step("time it against fp32")
    speed = _time(stage, out / MODEL_NAME, data)
    if speed.faster is not True:
        known = "not" if speed.faster is False else "not shown to be"
        stage.note(f"{known} faster than fp32 here: {speed.text}")
    return OptimiseReport(
        onnx=versions_of(load_graph(out / MODEL_NAME)),
        parity=[_parity(finding) for finding in best.findings],
        accuracy=_accuracy(job, best.findings),
        precision=_precision(job, data, best, results, search),
        speed=speed.as_dict(),
        notes=tuple(stage.notes),
    )


def _data(stage: _Stage) -> Data:
    stage.step("load the inputs to measure and compare with")
    data = load_data(stage.job, stage.files, stage.functions)
    if data.origin == "random" and stage.job.precision != "int8-dynamic":
        stage.note("ranges are measured on random inputs; a sample or calibration function gives real ones")
    if data.cut:
        stage.note(f"{data.samples} samples of {stage.job.calibration} are read; the rest is left unread")
    if data.origin == "calibration" and data.held_out_is_fit:
        stage.note("too few batches to hold some out: it is compared on those that it was calibrated with")
    return data


def _judge(stage: _Stage, data: Data) -> Judge:
    job = stage.job
    golden = read_samples(job.exported)
    if golden is None:
        raise ExportError(f"{job.exported} has no golden samples")
    metric = None
    if job.metric is not None:
        function = stage.functions.load(job.metric, [tensor.name for tensor in job.inputs])
        metric = Metric(job.metric, function, job.inputs, stage.files)
    return Judge(job, stage.reference, (golden.inputs, golden.outputs), data.held_out, metric)


def _try(stage: _Stage, judge: Judge, method: Method, keep: Collection[str], how: str = "") -> _Result:
    name = method.name + how
    stage.step(f"make it ({name})")
    made = method.make(frozenset(keep), stage.scratch / name.replace(" ", "-") / MODEL_NAME)
    judgement = judge(made.path)
    return _Result(name=name, method=method, made=made, judgement=judgement, findings=tuple(judge.findings))


def _search(
    stage: _Stage, data: Data, judge: Judge, best: _Result, keep: Collection[str]
) -> tuple[_Result, Search]:
    """Give nodes back their precision until the gate passes.

    Raises:
        ParityError: It does not pass within the allowed attempts; shows how far it came.
    """
    job, method = stage.job, best.method
    stage.step(f"search what must stay in FP32: {best.judgement.text}")
    memory = job.state / f"{job.variant}.search.json"
    for state in (memory, None):
        trials = Trials(
            reference=stage.reference,
            make=lambda kept, out: method.make(kept | frozenset(keep), out),
            judge=judge,
            folder=stage.scratch,
            state=state,
            key=_search_key(stage, data, method, judge),
            progress=stage.step,
        )
        search = find_kept(group_layers(stage.reference, best.made.lowered), trials, attempts=job.attempts)
        if not search.ok:
            raise _no_way(job, best, search)
        found = _try(stage, judge, method, search.kept | frozenset(keep), " with what the search kept")
        if found.judgement.ok:
            return found, search
        memory.unlink(missing_ok=True)  # what it remembers is not what is judged now
    raise ParityError(
        f"{job.name}: {job.variant} passed once and did not the next time: {found.judgement.text}",
        hint="does the metric, or the data, change from one call to the next? Seed what is random",
    )


def _no_way(job: OptimiseJob, best: _Result, search: Search) -> ParityError:
    """Return why no variant is taken: none passes, or only one of which nothing is left."""
    message = f"{job.name}: {job.variant} is not close enough to the original: {best.judgement.text}"
    hint = "give more or better calibration data, or allow more with tolerance or max_absolute_drop"
    if any(point.ok and point.kept == search.groups for point in search.curve):
        message += f". It is with all {search.groups} layers in FP32 only, which leaves nothing to gain"
    else:
        hint = f"leave layers in FP32 with keep, {hint}"
    if job.sample is None and job.calibration is not None:
        hint = f"{hint}; it is also judged on a golden sample of random inputs: give real ones with sample"
    return ParityError(message, hint=hint, detail=search.text)


def _search_key(stage: _Stage, data: Data, method: Method, judge: Judge) -> str:
    """Return what judgements depend on besides the FP32 file and the nodes that are kept."""
    job = stage.job
    parts = [
        method.name,
        judge.digest,
        __version__,
        *job.keep,
        str(job.reduce_range),
        str(job.on_cpu),
        str(job.on_gpu),
    ]
    gate = [job.tolerances.as_dict(), job.metric, job.original_metric, job.max_absolute_drop]
    code = {name: sha256_file(job.root / name) for name in stage.functions.dependencies()}
    tools = [metadata.version("onnxruntime"), describe_cpu()]
    return sha256_bytes(canonical_json([*parts, gate, code, data_digest(data.fit), tools]).encode())


def _time(stage: _Stage, variant: Path, data: Data) -> Speed:
    job = stage.job
    sizes = {name: dim.opt for name, dim in job.dims.items()}
    inputs = resized(data.held_out[0], job.inputs, sizes)
    return time_variant(stage.reference, variant, inputs, most_s=job.timing_s)


def _parity(finding: Finding) -> dict[str, Any]:
    return {"run": finding.way, "outputs": [difference.as_dict() for difference in finding.differences]}


def _accuracy(job: OptimiseJob, findings: tuple[Finding, ...]) -> dict[str, Any]:
    values = [finding.accuracy for finding in findings if finding.accuracy is not None]
    if not values or job.original_metric is None:
        return {}
    value = min(values)
    return {
        "metric": job.metric,
        "original": job.original_metric,
        "exported": value,
        "drop": job.original_metric - value,
    }


def _precision(
    job: OptimiseJob, data: Data, best: _Result, results: list[_Result], search: Search | None
) -> dict[str, Any]:
    return {
        "declared": job.precision,
        "method": best.name,
        "kept": dict(sorted(best.made.kept.items())),
        "cut": dict(sorted(best.made.cut.items())),
        "lowered": len(best.made.lowered),
        "placement": best.made.placement,
        "measured_on": data.origin,
        "tried": [
            {
                "method": r.name,
                "ok": r.judgement.ok,
                "score": _finite(r.judgement.score),
                "text": r.judgement.text,
            }
            for r in results
        ],
        "search": search.as_dict() if search else {},
    }


def _explained(made: Made, asked: Collection[str]) -> Made:
    """Return it with what the stage keeps for the gate told from what the user asked for."""

    def why(name: str, reason: str) -> str:
        if name in asked:
            return reason
        return reason.replace(KEPT, _FOR_THE_GATE).replace(ASKED, _FOR_THE_GATE)

    kept, others = made.kept, made.placement.get("others", {})
    placement = {"others": {name: why(name, reason) for name, reason in others.items()}} if others else {}
    return replace(
        made,
        kept={name: why(name, reason) for name, reason in kept.items()},
        placement={**made.placement, **placement},
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _work(text: str, out: Path, progress: Progress) -> dict[str, Any]:
    return perform(OptimiseJob.from_json(text), out, progress).as_dict()


if __name__ == "__main__":
    sys.exit(run_worker(_work))
