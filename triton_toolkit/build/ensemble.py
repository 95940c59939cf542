"""The recipe of an ensemble: steps wired by tensor name, dtype and shape checked before Triton does.

Rules: Triton core's ensemble checks (facts, "Ensembles"): a tensor is produced once, every input of a
step is fed, no produced tensor is left unused, data types and shapes agree, and no step has a smaller
``max_batch_size`` than the ensemble.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._progress import Progress
from triton_toolkit.build.configure import render
from triton_toolkit.build.recipe import Context, Made, environment_key, spec_hash, tool_versions
from triton_toolkit.build.samples import Tensors, load_sample, served_shape
from triton_toolkit.config.describe import EnsembleStep
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import SpecError
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from triton_toolkit.spec.models import EnsembleModel

_BATCH = "batch"


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a wire: a step's tensor, and where the spec names the step."""

    step: int
    model: str
    tensor: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A checked ensemble: what goes in, what comes out, and the maps of each step."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_dim: str | None
    dims: dict[str, list[int]]
    steps: tuple[EnsembleStep, ...]


class EnsembleRecipe:
    """Holds no model file: its version folder has only the passport and the golden samples."""

    backend = ""
    variant = ""
    measured = False

    def __init__(self, context: Context, name: str, model: EnsembleModel) -> None:
        self.name = name
        self._context = context
        self._model = model

    def key(self) -> dict[str, str]:
        """Return the spec part and the content of every step's built version."""
        key = {"spec": spec_hash(self._model), **tool_versions("triton-toolkit")}
        key |= environment_key(self._context, self._model)
        for step in self._model.steps:
            passport = self._context.passport(step.model)
            key[f"step {step.model}"] = "not built" if passport is None else passport.identity()
        return key

    def make(self, folder: Path, progress: Progress) -> Made:
        """Check the wiring and produce the sample inputs."""
        progress.step(self.name, "checking the wiring of its steps")
        wiring = self._wire()
        tensors = Tensors(inputs=wiring.inputs, dims=wiring.dims, batch_dim=wiring.batch_dim)
        sample = load_sample(self._context, self.name, self._model.sample, tensors, progress)
        return Made(
            inputs=wiring.inputs,
            outputs=wiring.outputs,
            batch_dim=wiring.batch_dim,
            dims=wiring.dims,
            dependencies=sample.dependencies,
            requires=[step.model for step in self._model.steps],
            sample_inputs=sample.inputs,
        )

    def config(self, passport: Passport) -> str:
        """Render the config with every step's maps."""
        return render(self._context, passport, self._model.serve, self._wire().steps)

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield nothing."""
        return iter(())

    def _wire(self) -> Wiring:
        members = [self._member(index) for index in range(len(self._model.steps))]
        batching = all(member.batch_dim for member in members)
        produced: dict[str, _End] = {}
        consumed: dict[str, list[_End]] = {}
        for index, (step, member) in enumerate(zip(self._model.steps, members, strict=True)):
            self._check_names(index, "inputs", step.inputs, member.inputs)
            self._check_names(index, "outputs", step.outputs, member.outputs)
            for tensor in member.inputs:
                end = _End(index, step.model, _as_served(tensor, member))
                consumed.setdefault(step.inputs.get(tensor.name, tensor.name), []).append(end)
            for tensor in member.outputs:
                wire = step.outputs.get(tensor.name, tensor.name)
                if wire in produced:
                    other = produced[wire].model
                    hint = f"give one of them another name with outputs: {{{tensor.name}: …}}"
                    raise self._error(index, f"tensor {wire!r} is already produced by {other}", hint)
                produced[wire] = _End(index, step.model, _as_served(tensor, member))
        for wire, ends in consumed.items():
            first = produced.get(wire, ends[0])
            for end in ends:
                self._check_wire(wire, first, end)
        returned = self._returned(produced, consumed)
        outputs = tuple(_as(produced[wire].tensor, wire) for wire in returned)
        inputs = tuple(_as(ends[0].tensor, wire) for wire, ends in consumed.items() if wire not in produced)
        return Wiring(
            inputs=inputs,
            outputs=outputs,
            batch_dim=_BATCH if batching else None,
            dims=_dims(inputs, members, batching, self._limits()),
            steps=tuple(
                self._maps(index, member, set(consumed) | set(returned))
                for index, member in enumerate(members)
            ),
        )

    def _limits(self) -> list[int]:
        """Return the batch sizes to which ``serve:`` limits steps."""
        models = [self._context.project.model(step.model) for step in self._model.steps]
        limits = [model.serve.get("max_batch_size") for model in models if model.kind != "prebuilt"]
        return [limit for limit in limits if isinstance(limit, int) and limit > 0]

    def _member(self, index: int) -> Passport:
        name = self._model.steps[index].model
        passport = self._context.passport(name)
        if passport is None:
            raise self._error(index, f"step {name!r} is not built", f"run `tt build {name}`")
        return passport

    def _check_names(
        self, index: int, side: str, mapped: dict[str, str], tensors: tuple[TensorSpec, ...]
    ) -> None:
        names = [tensor.name for tensor in tensors]
        for name in mapped:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                text = f"{self._model.steps[index].model} has no {side[:-1]} {name!r}"
                text += f"; did you mean {near[0]!r}?" if near else ""
                raise self._context.project.error(
                    ("models", self.name, "steps", index, side, name), text, f"its {side}: {', '.join(names)}"
                )

    def _check_wire(self, wire: str, first: _End, end: _End) -> None:
        """Check that both ends of a wire have one type and shapes that can be equal."""
        a, b = first.tensor, end.tensor
        if a.dtype is not b.dtype:
            raise self._error(
                end.step,
                f"tensor {wire!r} is {a.dtype.spec} in {first.model} and {b.dtype.spec} in {end.model}",
            )
        clash = any(
            isinstance(x, int) and isinstance(y, int) and x != y
            for x, y in zip(a.shape, b.shape, strict=False)
        )
        if len(a.shape) != len(b.shape) or clash:
            raise self._error(
                end.step,
                f"tensor {wire!r} has shape {_shape(a)} in {first.model} and {_shape(b)} in {end.model}",
            )

    def _returned(self, produced: dict[str, _End], consumed: dict[str, list[_End]]) -> list[str]:
        """Return the ensemble's outputs: as declared, else what no step consumes."""
        declared = self._model.outputs
        for index, wire in enumerate(declared):
            if wire not in produced:
                near = difflib.get_close_matches(wire, list(produced), n=1)
                text = f"no step produces {wire!r}" + (f"; did you mean {near[0]!r}?" if near else "")
                raise self._context.project.error(
                    ("models", self.name, "outputs", index), text, f"produced: {', '.join(produced)}"
                )
        returned = declared or [wire for wire in produced if wire not in consumed]
        if not returned:
            at = ("models", self.name, "steps")
            raise self._context.project.error(
                at, "every tensor is consumed by a step; nothing would be returned"
            )
        for wire, end in produced.items():
            siblings = [w for w, other in produced.items() if other.step == end.step]
            if not any(w in consumed or w in returned for w in siblings):
                raise self._error(end.step, f"step {end.model!r} is unused: nothing takes {wire!r}")
        return returned

    def _maps(self, index: int, member: Passport, used: set[str]) -> EnsembleStep:
        step = self._model.steps[index]
        outputs = {tensor.name: step.outputs.get(tensor.name, tensor.name) for tensor in member.outputs}
        return EnsembleStep(
            model_name=step.model,
            input_map={tensor.name: step.inputs.get(tensor.name, tensor.name) for tensor in member.inputs},
            output_map={name: wire for name, wire in outputs.items() if wire in used},
        )

    def _error(self, index: int, message: str, hint: str = "") -> SpecError:
        return self._context.project.error(("models", self.name, "steps", index), message, hint)


def _as_served(tensor: TensorSpec, member: Passport) -> TensorSpec:
    """Return a tensor as it is served, its batch dimension under one name, whatever the member calls it."""
    shape = served_shape(tensor, member.batch_dim)
    if member.batch_dim is not None:
        shape = (_BATCH, *shape[1:])
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=shape)


def _as(tensor: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=tensor.dtype, shape=tensor.shape)


def _shape(tensor: TensorSpec) -> str:
    return f"[{', '.join(str(extent) for extent in tensor.shape)}]"


def _dims(
    inputs: tuple[TensorSpec, ...], members: list[Passport], batching: bool, limits: list[int]
) -> dict[str, list[int]]:
    """Return the ranges of the ensemble's own dimensions; its batch is the smallest of its steps'."""
    dims: dict[str, list[int]] = {}
    for tensor in inputs:
        for name in tensor.dynamic:
            ranges = [member.dims[name] for member in members if name in member.dims]
            if ranges and name != _BATCH:
                dims[name] = _shared_range(ranges)
    if batching:
        batches = [member.dims[member.batch_dim] for member in members if member.batch_dim]
        largest = min(*(sizes[2] for sizes in batches), *limits)
        dims[_BATCH] = [1, min(*(sizes[1] for sizes in batches), largest), largest]
    return dims


def _shared_range(ranges: list[list[int]]) -> list[int]:
    """Return the sizes that all steps take, as a passport has them: [min, opt, max], and a step above 1."""
    step = math.lcm(*((*sizes, 1)[3] for sizes in ranges))
    low = -(-max(sizes[0] for sizes in ranges) // step) * step
    high = min(sizes[2] for sizes in ranges) // step * step
    shared = [low, min(max(ranges[0][1] // step * step, low), high), high]
    return [*shared, step] if step > 1 else shared
