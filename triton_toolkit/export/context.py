"""What the steps of one export share, and what is handed from the first half to the second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress
from triton_toolkit.core.compare import Tolerances, compare_outputs
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.exported import Exported
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.samples import InputMaker, SampleFunction
from triton_toolkit.export.session import Session
from triton_toolkit.export.source import load_callable
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

MODEL_NAME = "model.onnx"


@dataclass(slots=True)
class Context:
    """One run of the export process."""

    job: ExportJob
    out: Path
    progress: Progress
    files: ProjectFiles
    notes: list[str] = field(default_factory=list)
    dependencies: set[str] = field(default_factory=set)
    seen_readers: set[str] = field(default_factory=set)
    """Packages that read files in native code, whose files are in ``dependencies`` all the same."""

    @property
    def path(self) -> Path:
        """Where the model is written."""
        return self.out / MODEL_NAME

    def step(self, text: str) -> None:
        """Tell what is being done now."""
        self.progress.step(self.job.name or self.job.source, text)

    def note(self, text: str) -> None:
        """Keep something that the user should know, though nothing failed."""
        self.notes.append(text)
        self.progress.note(self.job.name or self.job.source, text)

    def sample_function(self) -> SampleFunction | None:
        """Load the user's sample function; None where the job has none."""
        if self.job.sample is None:
            return None
        function = load_callable(self.files, self.job.sample)
        names = [tensor.name for tensor in self.job.inputs]
        return SampleFunction(self.job.sample, function, self.job.dims, self.files, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A written ``model.onnx`` that is still to be proven.

    Attributes:
        predict: The original; its second argument says what it does where it fails, such as
            ``fails at batch=8``.
        session: The file as it is served.
        inputs: Its inputs, dynamic dimensions by name.
        outputs: Its outputs as they stand in the file.
        dims: Ranges of the inputs' dynamic dimensions.
        maker: Makes inputs at any of their sizes.
        exported: How it was exported; None for a file that came as ONNX.
    """

    predict: Callable[[Arrays, str], Arrays]
    session: Session
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: dict[str, Dim]
    maker: InputMaker
    exported: Exported | None = None

    @property
    def sources(self) -> Mapping[str, str]:
        """Node name -> place in the user's code, as far as known."""
        return self.exported.sources if self.exported else {}


def used_dims(inputs: tuple[TensorSpec, ...], dims: Mapping[str, Dim]) -> dict[str, Dim]:
    """Return the dimensions that an input has; outputs may name others, whose sizes follow."""
    used = {name for tensor in inputs for name in tensor.dynamic}
    return {name: dim for name, dim in dims.items() if name in used}


def check_deterministic(first: Arrays, second: Arrays, tolerances: Tolerances) -> None:
    """Check the outputs of two runs on the same inputs.

    Raises:
        ExportError: They differ by more than the tolerance.
    """
    for difference in compare_outputs(second, first, tolerances):
        if not difference.ok:
            raise ExportError(
                f"the model is not deterministic: on the same inputs output {difference.output!r} "
                f"{difference.problem}",
                hint="look for F.dropout without training=self.training, random numbers in forward, or "
                "state that forward changes",
            )
