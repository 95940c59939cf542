"""Is a variant still right? Compared on held-out inputs, and by the user's metric."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Difference, compare_outputs
from triton_toolkit.errors import ExportError
from triton_toolkit.export.accuracy import Metric
from triton_toolkit.export.session import RunFailed, Session
from triton_toolkit.optimise.calibration import data_digest
from triton_toolkit.optimise.emulate import emulate_fp16
from triton_toolkit.optimise.job import OptimiseJob
from triton_toolkit.optimise.search import Judgement

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
Case = tuple[Arrays, Arrays]
"""Inputs, and the outputs that belong to them."""

AS_WRITTEN = {"session.disable_quant_qdq": "1"}
"""Q/DQ pairs are computed as the graph says, not by fused INT8 kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of one variant in one way of running it.

    Attributes:
        way: ``as written`` or ``on this CPU``.
        differences: Worst figures of each output over all cases.
        accuracy: The metric; None where none was asked for.
        problem: What is wrong, empty where nothing is.
    """

    way: str
    differences: list[Difference] = field(default_factory=list)
    accuracy: float | None = None
    problem: str = ""


class Judge:
    """Compares variants with the FP32 file, and with the original by the golden sample.

    Args:
        job: Tolerances, metric and its allowed drop.
        reference: The FP32 file, which the export has proven.
        golden: The golden sample: inputs, and the original's outputs.
        held_out: Inputs to compare on.
        metric: The user's metric; None without.
    """

    def __init__(
        self,
        job: OptimiseJob,
        reference: Path,
        golden: Case,
        held_out: Sequence[Arrays],
        metric: Metric | None,
    ) -> None:
        self._job = job
        self._metric = metric
        session = Session(reference)
        self._cases = [golden, *((inputs, _expected(session, inputs)) for inputs in held_out)]
        self._wanted = [outputs for _, outputs in self._cases]
        batched = {tensor.name for tensor in job.outputs if tensor.shape[:1] == (job.batch_dim,)}
        self._groups = groups(self._wanted, batched)
        self.digest = data_digest([inputs for inputs, _ in self._cases])
        """Hash of all inputs that variants are compared on."""
        self.findings: list[Finding] = []
        """Of the last file judged, one a way of running it."""

    def __call__(self, path: Path) -> Judgement:
        """Judge one file; in all ways that it will be run.

        Raises:
            ExportError: ONNX Runtime refuses the file, or the metric raises.
        """
        fused = self._job.on_cpu and self._job.precision != "fp16"  # FP16 is computed in FP32 there
        self.findings = []
        if self._job.on_gpu or not fused:
            self.findings.append(self._find("as written", self._as_written(path)))
        if fused:
            self.findings.append(self._find("on this CPU", Session(path)))
        problems = [f"{finding.way}: {finding.problem}" for finding in self.findings if finding.problem]
        score = min(self._score(finding) for finding in self.findings)
        return Judgement(ok=not problems, score=score, text="; ".join(problems))

    def _as_written(self, path: Path) -> Session:
        """Return a session that computes what the file says, which ONNX Runtime's CPU does not do.

        It has few FP16 kernels and computes in FP32 instead; its fused INT8 kernels saturate on CPUs
        without VNNI.
        """
        if "fp16" not in self._job.precision:
            return Session(path, entries=AS_WRITTEN)
        with tempfile.TemporaryDirectory(prefix="tt-emulated-") as folder:
            emulated = Path(folder) / path.name
            emulate_fp16(path, emulated)
            return Session(emulated, entries=AS_WRITTEN)

    def _find(self, way: str, session: Session) -> Finding:
        try:
            given = [session.predict(inputs) for inputs, _ in self._cases]
        except RunFailed as exc:
            return Finding(way=way, problem=f"node {exc.node!r} ({exc.operator}) fails: {exc.reason}")
        differences = self._compare(given)
        problems = [f"output {d.output!r} {d.problem}" for d in differences if not d.ok]
        accuracy = self._metric(session.predict, f"the {self._job.variant} variant") if self._metric else None
        if accuracy is not None and self._drop(accuracy) > self._job.max_absolute_drop:
            fall = f"{self._job.metric} falls from {self._job.original_metric:.6g} to {accuracy:.6g}"
            problems.insert(0, f"{fall}, allowed is a drop of {self._job.max_absolute_drop:g}")
        return Finding(way=way, differences=differences, accuracy=accuracy, problem="; ".join(problems))

    def _compare(self, given: Sequence[Arrays]) -> list[Difference]:
        """Return the worst difference of each output over all cases.

        The golden sample is also compared alone, as it is where the variant is served: the range of its
        few rows is often smaller than that of all.
        """
        alone = compare_outputs(given[0], self._wanted[0], self._job.tolerances)
        found = {difference.output: [difference] for difference in alone}
        for name, cases in self._groups:
            actual, expected = (
                joined([side[case][name] for case in cases]) for side in (given, self._wanted)
            )
            found.setdefault(name, []).extend(
                compare_outputs(
                    {name: actual},
                    {name: expected},
                    self._job.tolerances,
                    batched=self._job.batch_dim is not None,
                )
            )
        return [worst(differences) for differences in found.values()]

    def _drop(self, accuracy: float) -> float:
        return (self._job.original_metric or 0.0) - accuracy

    def _score(self, finding: Finding) -> float:
        """Return how good it is: the metric where there is one, else minus the worst error's excess."""
        if finding.accuracy is not None:
            return finding.accuracy
        if not finding.differences:
            return float("-inf")
        return -max(difference.excess for difference in finding.differences)


def _expected(session: Session, inputs: Arrays) -> Arrays:
    try:
        return session.predict(inputs)
    except RunFailed as exc:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        node = f" in node {exc.node!r} ({exc.operator})" if exc.node else ""
        raise ExportError(
            f"the FP32 model fails on inputs to compare on, {shapes}{node}: {exc.reason}",
            hint="calibration data is brought to the smallest and largest sizes by repeating and cutting it; "
            "where such inputs are not legal, give a sample function that takes the sizes",
        ) from exc


def groups(outputs: Sequence[Arrays], batched: Collection[str]) -> list[tuple[str, list[int]]]:
    """Return, for each output, which cases are compared together: those that differ in the batch only.

    Shares (of rows that agree, of zeros) mean nothing for the few rows of one batch.

    Args:
        outputs: The outputs of each case, all with the same names.
        batched: Outputs whose first axis is the batch.
    """
    result: list[tuple[str, list[int]]] = []
    for name in outputs[0]:
        together: dict[object, list[int]] = {}
        for index, case in enumerate(outputs):
            together.setdefault(case[name].shape[1:] if name in batched else index, []).append(index)
        result += [(name, cases) for cases in together.values()]
    return result


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays joined along the first axis; a single one as it is."""
    import numpy as np

    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def worst(differences: Sequence[Difference]) -> Difference:
    """Return the difference that is furthest beyond its tolerance."""
    return max(differences, key=lambda difference: (not difference.ok, difference.excess))
