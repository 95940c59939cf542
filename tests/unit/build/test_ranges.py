"""The ranges of dimensions in a passport, and what is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit._progress import Silent
from triton_toolkit.build.run import recipe_for

TENSORS = """
      inputs: {x: {dtype: fp32, shape: [batch, h]}}
      outputs: {y: {dtype: fp32, shape: [batch, h]}}
      dims: {batch: [1, 2, 4], h: {min: 32, opt: 64, max: 96, multiple_of: 32}}
      batch_dim: batch
"""
SAMPLE = """
import numpy as np
def sample(batch, h):
    assert h % 32 == 0
    return {"x": np.zeros((batch, h), np.float32)}
"""
RANGES = {"batch": [1, 2, 4], "h": [32, 64, 96, 32]}


def test_a_python_models_step_is_kept_and_its_sample_made_at_such_sizes(
    project_of: ProjectOf, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("class TritonPythonModel: ...\n")
    (tmp_path / "samples.py").write_text(SAMPLE)
    context = project_of(f"""
    m:
      kind: python
      files: code
      sample: samples:sample
{TENSORS}""")
    (tmp_path / "made").mkdir()
    made = recipe_for(context, "m").make(tmp_path / "made", Silent())
    assert made.dims == RANGES
    assert made.sample_inputs is not None
    assert made.sample_inputs["x"].shape == (2, 64)


@pytest.mark.torch
def test_an_exported_models_step_is_kept(project_of: ProjectOf, tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "h"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")
    context = project_of(f"""
    m:
      kind: onnx
      source: net.onnx
{TENSORS}""")
    (tmp_path / "made").mkdir()
    assert recipe_for(context, "m").make(tmp_path / "made", Silent()).dims == RANGES
