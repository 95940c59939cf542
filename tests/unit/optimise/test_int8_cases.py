"""INT8 failures that others reported, each with what ONNX Runtime's own tool gives and what ours must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.unit.optimise.int8_models import (
    Array,
    batches,
    convnet,
    detector,
    named,
    node,
    normal,
    operators,
    save,
)
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.calibration import calibrate
from triton_toolkit.optimise.int8 import to_int8
from triton_toolkit.optimise.placement import read_placement

AS_WRITTEN = {"session.disable_quant_qdq": "1"}
CELLS = (8, 3, 8, 8)


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, data: list[dict[str, Array]]) -> None:
        self._data: Iterator[dict[str, Array]] = iter(data)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._data, None)


def int8(path: Path, data: list[dict[str, Array]], **options: Any) -> Path:
    out = path.with_name("int8.onnx")
    to_int8(path, out, calibrate(path, data, ["minmax"])["minmax"], **options)
    return out


def cosine(a: Array, b: Array) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.fixture(scope="module")
def boxes_and_scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detector(tmp_path_factory.mktemp("detector") / "model.onnx")


@pytest.fixture(scope="module")
def detections(boxes_and_scores: Path) -> tuple[Array, Array]:
    """Outputs of the original and of our variant."""
    data = batches(CELLS)
    variant = int8(boxes_and_scores, data)
    inputs = batches(CELLS, 1, seed=999)[0]
    original = Session(boxes_and_scores).predict(inputs)["y"]
    return original, Session(variant, entries=AS_WRITTEN).predict(inputs)["y"]


def test_boxes_beside_scores_lose_their_scores_in_the_usual_way(boxes_and_scores, tmp_path):
    """The reported failure: one scale for the joined tensor, cosine all but 1, every score the same."""
    out = tmp_path / "usual.onnx"
    quantize_static(boxes_and_scores, out, Reader(batches(CELLS)), quant_format=QuantFormat.QDQ)
    inputs = batches(CELLS, 1, seed=999)[0]
    original, usual = (Session(p).predict(inputs)["y"] for p in (boxes_and_scores, out))
    assert cosine(original, usual) > 0.999
    assert len(np.unique(original[:, 4])) > 200
    assert len(np.unique(usual[:, 4])) == 1


def test_scores_beside_boxes_stay_alive(detections):
    """YOLOv6#969, TensorRT#1401: all class scores 0 or below 0.05, boxes good."""
    original, ours = detections
    assert len(np.unique(ours[:, 4])) == len(np.unique(original[:, 4]))
    assert np.abs(ours[:, 4] - original[:, 4]).max() < 0.02
    assert (ours[:, 4] == 0).mean() == (original[:, 4] == 0).mean() == 0


def test_box_coordinates_beside_scores_stay_exact(detections):
    """TensorRT#1179: scores fine, box coordinates wrong. 1 % of 640 is 6.4 pixels."""
    original, ours = detections
    assert np.abs(ours[:, :4] - original[:, :4]).max() < 6.4


def test_the_heads_of_a_mixed_output_stay_in_float_and_are_named(boxes_and_scores, tmp_path):
    table = calibrate(boxes_and_scores, batches(CELLS), ["minmax"])["minmax"]
    kept = to_int8(boxes_and_scores, tmp_path / "out.onnx", table).kept
    assert set(kept) == {"boxes", "scores"}
    assert kept["scores"].startswith("it computes a part of Concat 'join', which joins 'boxes_px' (up to 6")
    assert kept["scores"].endswith("steps, an output of the model")
    assert read_placement(tmp_path / "out.onnx", kept).text.startswith("1 of 3 layers in INT8")


def test_the_joined_tensor_is_never_quantized(boxes_and_scores, tmp_path):
    table = calibrate(boxes_and_scores, batches(CELLS), ["minmax"])["minmax"]
    to_int8(boxes_and_scores, tmp_path / "out.onnx", table)
    assert list(named(tmp_path / "out.onnx", "join").input) == ["boxes_px", "scores_01"]
    assert list(named(tmp_path / "out.onnx", "y").input) == ["joined", "shape"]


def classifier(path: Path) -> Path:
    """A depthwise convolution whose channels' weights differ a thousandfold, and ten classes.

    What is small in a channel's weight is large in the weights after it, as folded batch norms leave
    it: all channels count alike.
    """
    size = np.float32(10.0) ** np.linspace(-3, 0, 16, dtype=np.float32)
    return save(
        path,
        {"x": ["N", 16, 6, 6]},
        [
            node("Conv", "x depthwise", "d", group=16, pads=[1, 1, 1, 1]),
            node("Mul", "d level", "n"),
            node("Relu", "n", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Flatten", "p", "f"),
            node("Gemm", "f w", "y", transB=1),
        ],
        {
            "depthwise": normal(1, 16, 1, 3, 3) * size.reshape(16, 1, 1, 1),
            "level": (1 / size).reshape(1, 16, 1, 1),
            "w": normal(2, 10, 16),
        },
        {"y": ["N", 10]},
    )


@pytest.fixture(scope="module")
def depthwise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("depthwise") / "model.onnx")


def agreement(a: Path, b: Path) -> float:
    """Share of inputs for which two classifiers name the same class."""
    inputs = {"x": normal(77, 200, 16, 6, 6)}
    classes = [Session(p, entries=AS_WRITTEN).predict(inputs)["y"].argmax(axis=1) for p in (a, b)]
    return float((classes[0] == classes[1]).mean())


def test_a_depthwise_convolution_collapses_in_the_usual_dynamic_int8(depthwise, tmp_path):
    """ability-draft-plus#80: 0.09 % accuracy after dynamic quantization; one scale for all channels."""
    quantize_dynamic(depthwise, tmp_path / "usual.onnx", weight_type=QuantType.QUInt8)
    assert agreement(depthwise, tmp_path / "usual.onnx") < 0.5


def test_a_depthwise_convolution_keeps_its_classes_in_our_static_int8(depthwise):
    """ability-draft-plus#80: static per-channel Q/DQ reached 98.8 %; onnxruntime#6545: per channel worse."""
    out = int8(depthwise, batches((8, 16, 6, 6)))
    assert read_placement(out).text.startswith("2 of 2 layers in INT8")
    assert agreement(depthwise, out) > 0.95


def test_reduced_range_keeps_the_classes_too(depthwise):
    """onnxruntime#6545: the maintainers' remedy for CPUs without VNNI."""
    assert agreement(depthwise, int8(depthwise, batches((8, 16, 6, 6)), reduce_range=True)) > 0.95


def test_nothing_but_int8_is_ever_made(tmp_path):
    """onnxruntime#21000: INT16 weights per channel collapse to cosine 0.55."""
    path = convnet(tmp_path / "model.onnx")
    out = int8(path, batches(CELLS))
    made = {t.data_type for t in onnx.load(out).graph.initializer} - {TensorProto.FLOAT, TensorProto.INT64}
    assert made == {TensorProto.INT8}
    inputs = batches(CELLS, 1, seed=5)[0]
    original, ours = (Session(p, entries=AS_WRITTEN).predict(inputs)["y"] for p in (path, out))
    assert cosine(original, ours) > 0.999


@pytest.mark.parametrize("entries", [AS_WRITTEN, {}], ids=["as written", "on this CPU"])
def test_signed_int8_is_qdq_and_right_in_either_way_of_running_it(tmp_path, entries):
    """onnxruntime#12072: S8S8 per channel as QLinear operators on x64 has a top-1 of 0.0003."""
    path = convnet(tmp_path / "model.onnx")
    out = int8(path, batches(CELLS), reduce_range=True)
    assert not [op for op in operators(out) if op.startswith("QLinear") or op.endswith("Integer")]
    inputs = batches(CELLS, 1, seed=5)[0]
    original = Session(path).predict(inputs)["y"]
    ours = Session(out, entries=entries).predict(inputs)["y"]
    assert (ours.argmax(axis=1) == original.argmax(axis=1)).all()
    assert cosine(original, ours) > 0.999
