"""Static INT8 for CPUs alone: uint8 activations, which ONNX Runtime fuses with what is around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.unit.optimise.int8_models import batches, convnet, made_by, node, normal, operators, save, weight
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.calibration import calibrate
from triton_toolkit.optimise.int8 import to_int8
from triton_toolkit.optimise.placement import read_placement


def chain(path: Path) -> Path:
    """Two convolutions, each with a Relu, and one more: two of them end where the next one begins."""
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 1, 1)}
    return save(
        path,
        {"x": ["N", 3, 8, 8]},
        [
            node("Conv", "x w1", "c1"),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2", "c2"),
            node("Relu", "c2", "r2"),
            node("Conv", "r2 w3", "y"),
        ],
        {name: normal(seed, *shape, scale=0.2) for seed, (name, shape) in enumerate(shapes.items())},
        {"y": ["N", 8, 4, 4]},
    )


def made(path: Path, *, unsigned: bool = True) -> Path:
    """Return the INT8 file of a model of images."""
    out = path.with_name("int8.onnx")
    table = calibrate(path, batches((8, 3, 8, 8)), ["minmax"])["minmax"]
    to_int8(path, out, table, reduce_range=True, unsigned=unsigned)
    return out


def as_run(path: Path) -> list[str]:
    """Return the operators that ONNX Runtime makes of a file."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return operators(path.with_name("optimized.onnx"))


def steps(path: Path, tensor: str) -> tuple[float, np.generic]:
    """Return scale and zero point of a tensor's integers."""
    scale, zero = (weight(path, name) for name in made_by(path, f"{tensor}/int8").input[1:])
    return float(scale), zero[()]


def test_what_a_relu_gives_has_all_integers_above_zero(tmp_path):
    path = chain(tmp_path / "model.onnx")
    low, high = calibrate(path, batches((8, 3, 8, 8)), ["minmax"])["minmax"]["r1"]
    scale, zero = steps(made(path), "r1")
    assert (low, zero, zero.dtype) == (0, 0, np.uint8)
    assert scale == pytest.approx(high / 255)


def test_a_range_on_both_sides_has_its_zero_at_an_integer(tmp_path):
    path = chain(tmp_path / "model.onnx")
    low, high = calibrate(path, batches((8, 3, 8, 8)), ["minmax"])["minmax"]["x"]
    scale, zero = steps(made(path), "x")
    assert scale == pytest.approx((high - low) / 255)
    assert zero == round(-low / scale)


@pytest.mark.parametrize(("unsigned", "fused"), [(True, 2), (False, 0)])
def test_layers_whose_results_are_integers_again_run_as_one_operator(tmp_path, unsigned, fused):
    found = as_run(made(chain(tmp_path / "model.onnx"), unsigned=unsigned))
    assert found.count("QLinearConv") == fused


@pytest.mark.parametrize("optimized", [True, False])
def test_it_computes_what_the_model_does(tmp_path, optimized):
    path = convnet(tmp_path / "model.onnx")
    out, inputs = made(path), batches((8, 3, 8, 8))[0]
    expected = Session(path).predict(inputs)["y"]
    error = np.abs(Session(out, optimized=optimized).predict(inputs)["y"] - expected).max()
    assert error < 0.02 * np.abs(expected).max()


def test_its_placement_says_that_tensorrt_refuses_it(tmp_path):
    placement = read_placement(made(convnet(tmp_path / "model.onnx")))
    assert len(placement.int8) == 3
    assert any("TensorRT takes zero point 0 only" in text for text in placement.refused)


def test_weights_stay_symmetric(tmp_path):
    out = made(convnet(tmp_path / "model.onnx"))
    zeros = [weight(out, f"w{number}/int8_zero_point") for number in (1, 2, 3)]
    assert all(zero.dtype == np.int8 and not zero.any() for zero in zeros)
    onnx.checker.check_model(onnx.load(out), full_check=True)
