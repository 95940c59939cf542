"""What a variant is compared on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import write
from triton_toolkit.core.compare import default_tolerances
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.job import OptimiseJob
from triton_toolkit.optimise.judge import Judge


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """One whose golden sample reaches 1, and whose held-out inputs reach 10."""
    reference = write(tmp_path / "fp32.onnx", "(float[batch,4] x) => (float[batch,4] y) { y = Identity(x) }")
    output = TensorSpec(name="y", dtype=DataType.parse("fp32"), shape=("batch", 4))
    job = OptimiseJob(
        root=tmp_path,
        name="net",
        variant="int8",
        precision="int8",
        exported=tmp_path,
        inputs=(replace(output, name="x"),),
        outputs=(output,),
        batch_dim="batch",
        tolerances=default_tolerances("int8"),
        state=tmp_path,
    )
    golden = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    held_out = {"x": 10 * golden["x"]}
    return Judge(job, reference, (golden, Session(reference).predict(golden)), [held_out], None)


@pytest.mark.parametrize(("error", "ok"), [(0.05, True), (0.3, False)])
def test_the_golden_sample_must_be_right_alone_as_it_is_where_it_is_served(judge, tmp_path, error, ok):
    """15 % of 10 are allowed of the held-out rows, of the golden ones 15 % of 1."""
    text = "(float[batch,4] x) => (float[batch,4] y) { y = Add(x, e) }"
    found = judge(write(tmp_path / "int8.onnx", text, e=np.float32(error)[None]))
    assert found.ok == ok
