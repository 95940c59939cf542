"""What a config asks of the TensorRT accelerator: told in the build, which cannot prove it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import write
from triton_toolkit._progress import Silent
from triton_toolkit.build.accelerators import accelerator_notes
from triton_toolkit.build.run import BuildOptions, run_build
from triton_toolkit.spec.load import load_project

NORM = """(float[N,4] x) => (float[N,4] y) {
  m = ReduceMean(x, axis) d = Sub(x, m) square = Pow(d, two) v = ReduceMean(square, axis)
  s = Sqrt(v) y = Div(d, s)
}"""
QDQ = """(float[N,4] x) => (float[N,4] y) {
  q = QuantizeLinear(x, scale, zero) y = DequantizeLinear(q, scale, zero)
}"""
UNPROVEN = "which no build can prove"
FALLBACK = 'trt_layer_norm_fp32_fallback: "1"'


class Listening(Silent):
    """Progress that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, subject: str, text: str) -> None:
        self.notes.append(f"{subject}: {text}")


def notes(folder: Path, text: str, release: str | None = None, **parameters: str) -> list[str]:
    """Return the notes on this graph, served with these parameters of the accelerator."""
    weights = {"axis": np.array([1]), "two": np.float32(2)} if "Pow" in text else {}
    if "scale" in text:
        weights = {"scale": np.float32(0.1), "zero": np.int8(0)}
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in weights.items()}
    write(folder / "model.onnx", text, **arrays)
    given = "".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    accelerator = f'execution_accelerators {{ gpu_execution_accelerator {{ name: "tensorrt" {given} }} }}'
    return list(
        accelerator_notes(f'backend: "onnxruntime" optimization {{ {accelerator} }}', folder, release)
    )


def test_a_lower_precision_inside_of_the_server_is_told_as_unproven(tmp_path: Path) -> None:
    """triton-inference-server/server#5654: wrong with the accelerator in FP16, right in FP32."""
    [note] = notes(tmp_path, "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }", precision_mode="FP16")
    assert "FP16 (precision_mode), which no build can prove: only `tt deploy`" in note


@pytest.mark.parametrize("parameters", [{}, {"precision_mode": "FP32"}])
def test_an_accelerator_in_fp32_is_nothing_to_tell(tmp_path: Path, parameters: dict[str, str]) -> None:
    assert notes(tmp_path, NORM, **parameters) == []


def test_a_layer_norm_that_is_written_out_needs_the_fallback_in_fp16(tmp_path: Path) -> None:
    """microsoft/onnxruntime#13639: Pow in a layer norm overflows; the option keeps it in FP32."""
    _, note = notes(tmp_path, NORM, precision_mode="FP16")
    assert "(node 'square')" in note
    assert note.endswith(f"the parameter {FALLBACK}")


def test_with_the_fallback_nothing_is_said_of_it(tmp_path: Path) -> None:
    [note] = notes(tmp_path, NORM, precision_mode="FP16", trt_layer_norm_fp32_fallback="True")
    assert UNPROVEN in note


def test_a_release_that_does_not_know_the_fallback_is_named(tmp_path: Path) -> None:
    _, note = notes(tmp_path, NORM, "23.10", precision_mode="FP16")
    assert note.endswith("needs release 24.04; 23.10 is older")


@pytest.mark.parametrize(("parameters", "mode"), [({"precision_mode": "FP16"}, "FP16"), ({}, "FP32")])
def test_q_dq_pairs_need_int8(tmp_path: Path, parameters: dict[str, str], mode: str) -> None:
    """NVIDIA/TensorRT#4021: a Q/DQ model with FP16 alone fails, and does not fall back."""
    assert notes(tmp_path, QDQ, **parameters)[-1].endswith(f"without precision_mode: INT8, which is {mode}")


def test_q_dq_pairs_with_int8_are_as_they_should_be(tmp_path: Path) -> None:
    [note] = notes(tmp_path, QDQ, precision_mode="INT8")
    assert UNPROVEN in note


def test_a_model_that_is_served_from_elsewhere_is_not_looked_into(tmp_path: Path) -> None:
    notes(tmp_path, QDQ)
    (tmp_path / "model.onnx").rename(tmp_path / "other.onnx")
    config = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    assert list(accelerator_notes(f'backend: "onnxruntime" {config}', tmp_path, None)) == []


def test_a_build_tells_it(tmp_path: Path) -> None:
    write(tmp_path / "net.onnx", "(float[batch,4] x) => (float[batch,4] y) { y = Relu(x) }")
    (tmp_path / "tt.yaml").write_text(
        "spec: 1\nmodels: {net: {kind: onnx, source: net.onnx, dims: {batch: [1, 2, 4]}, batch_dim: batch, "
        "serve: {optimization: {execution_accelerators: {gpu_execution_accelerator: "
        "{name: tensorrt, parameters: {precision_mode: FP16}}}}}}}\n"
    )
    progress = Listening()
    [report] = run_build(load_project(tmp_path / "tt.yaml"), BuildOptions(), progress)
    assert report.error is None
    [note] = progress.notes
    assert note.startswith("net: TensorRT is asked to compute in FP16")
