"""Running ONNX files: on the provider that was asked for, and in the runtime's plain words where not."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.unit.optimise.fp16_models import write
from triton_toolkit.errors import ExportError
from triton_toolkit.export.session import RunFailed, Session

CUDA = "CUDAExecutionProvider"


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return write(tmp_path / "relu.onnx", "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")


@pytest.fixture
def without_cuda() -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has CUDA here")


@pytest.mark.usefixtures("without_cuda")
def test_a_provider_that_is_not_there_is_refused_and_not_replaced_by_the_cpu(relu):
    """microsoft/onnxruntime#23372: without the GPU's provider it silently runs on the CPU."""
    with pytest.raises(
        ExportError, match=f"^relu.onnx was to run with {CUDA}, and .*CPUExecutionProvider only"
    ):
        Session(relu, provider=CUDA)


@pytest.mark.usefixtures("without_cuda")
def test_a_session_that_took_another_provider_than_was_asked_for_is_refused(relu, monkeypatch):
    """The package has it, and its libraries do not load: ONNX Runtime warns and takes the CPU."""
    claimed = [CUDA, *onnxruntime.get_available_providers()]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: claimed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            ExportError, match=f"{CUDA}, and ONNX Runtime here offers CPUExecutionProvider only"
        ):
            Session(relu, provider=CUDA)


def test_a_failing_node_is_told_without_the_runtimes_own_code(tmp_path, capfd):
    path = write(
        tmp_path / "m.onnx", "(float[N,4] x) => (float[M,4] y) { y = Reshape(x, s) }", s=np.array([1, 4])
    )
    with pytest.raises(RunFailed) as caught:
        Session(path).predict({"x": np.ones((3, 4), np.float32)})
    assert caught.value.reason == (
        "The input tensor cannot be reshaped to the requested shape. Input shape:{3,4}, requested shape:{1,4}"
    )
    assert capfd.readouterr().err == ""


def test_a_refused_file_is_told_without_its_path_and_the_runtimes_own_code(relu):
    model = onnx.load(relu)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.preview.training", 9))
    onnx.save(model, relu)
    with pytest.raises(ExportError) as caught:
        Session(relu)
    found = caught.value.message.partition("refuses relu.onnx: ")[2]
    assert found.startswith(
        "ONNX Runtime only *guarantees* support for models stamped with official released"
    )
    assert found.endswith("Current official support for domain ai.onnx.preview.training is till opset 1.")
