"""ONNX's own models of single operators: each comes out right, or is refused with a reason."""

import importlib
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.ranges import scan_ranges

QUICK = (
    *("averagepool", "batch_normalization", "cast", "celu", "clip", "concat", "conv", "convtranspose"),
    *("cumsum", "div", "einsum", "expand", "gather", "gelu", "gemm", "groupnormalization", "gru", "if_"),
    *("instance_normalization", "log", "loop", "lstm", "matmul", "nonmaxsuppression", "pad", "pow"),
    *("quantizelinear", "rangeop", "reduce_log_sum_exp", "relu", "scatternd", "shape", "sin", "slice"),
    *("softmax", "softplus", "split", "topk", "where"),
)
"""Modules of ONNX with models of the operators that matter most: all together take ten seconds to import."""


def collect(modules=None):
    """Return ONNX's test cases of single operators, and of their expansions into simpler ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for name in modules or ():
            importlib.import_module(f"{node.__name__}.{name}")
        cases = node.collect_testcases(None) if modules is None else list(node._NodeTestCases)
    return [case for case in cases if case.model is not None]


def usable(case):
    """Return a case's inputs if it reads float32 tensors and ONNX Runtime runs it, else None."""
    graph = case.model.graph
    if not any(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in graph.input):
        return None
    feeds = dict(zip((value.name for value in graph.input), case.data_sets[0][0], strict=False))
    return feeds if all(isinstance(array, np.ndarray) for array in feeds.values()) else None


def session(path):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def close(found, expected):
    """Whether an output is what it was, to the eleven bits of FP16."""
    if isinstance(expected, list):
        return all(close(*pair) for pair in zip(found, expected, strict=True))
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    if expected.dtype.kind != "f":
        return (found == expected).all()
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
    with np.errstate(invalid="ignore"):
        return np.allclose(found, expected, rtol=2e-2, atol=2e-2 * largest, equal_nan=True)


def outcome(case, folder):
    """Convert one case: "right", "refused", or "" where ONNX Runtime does not run it in FP32."""
    feeds = usable(case)
    if feeds is None:
        return ""
    full, half = folder / "full.onnx", folder / "half.onnx"
    onnx.save(case.model, full)
    try:
        expected = session(full).run(None, feeds)
    except Exception:  # noqa: BLE001 - whatever it is, there is nothing to compare with
        return ""
    try:
        to_fp16(full, half, ranges=scan_ranges(full, [feeds]))
    except ExportError as exc:
        assert "nothing of it can run in FP16" in str(exc) or "take FP32 only" in str(exc), case.name  # noqa: PT017
        return "refused"
    found = session(half).run(None, feeds)
    assert all(close(*pair) for pair in zip(found, expected, strict=True)), case.name
    return "right"


def test_models_of_the_usual_operators_are_right_or_refused(tmp_path):
    outcomes = [outcome(case, tmp_path) for case in collect(QUICK)]
    assert outcomes.count("right") >= 150
    assert outcomes.count("refused") <= 0.25 * outcomes.count("right")


@pytest.mark.slow
def test_every_model_of_an_operator_is_right_or_refused(tmp_path):
    outcomes = [outcome(case, tmp_path) for case in collect()]
    assert outcomes.count("right") >= 1000
    assert outcomes.count("refused") <= 150
