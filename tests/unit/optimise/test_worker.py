"""The whole stage, on small ONNX files: make, judge, search, time, report."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import write
from tests.unit.optimise.int8_models import weight
from triton_toolkit._progress import Silent
from triton_toolkit.core.compare import Tolerance, Tolerances, default_tolerances
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.session import Session
from triton_toolkit.optimise import worker
from triton_toolkit.optimise.job import OptimiseJob, OptimiseReport
from triton_toolkit.optimise.timing import Speed, describe_cpu
from triton_toolkit.repository.passport import Samples, write_samples

WIDTH = 16
DATA = """
import numpy as np

def batches(scale=1.0):
    rng = np.random.default_rng(7)
    for _ in range(8):
        x = rng.standard_normal((32, 16)).astype(np.float32)
        x[:, 0] *= scale
        yield {"x": x}

def outlier():
    return batches(1000.0)

def score(predict):
    y = predict(next(iter(batches())))["y"]
    return float(np.isfinite(y).mean())
"""


def weights(*names):
    rng = np.random.default_rng(1)
    return {name: (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32) for name in names}


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a model of x and y, with its golden sample, and gives a job for it."""

    def job(text, precision="int8", calibration="batches", **changes):
        exported = tmp_path / "exported"
        exported.mkdir()
        values = changes.pop("weights", weights("w1", "w2"))
        path = write(exported / "model.onnx", text, **values)
        rows = changes.pop("golden_rows", 2)
        inputs = {"x": np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)}
        write_samples(exported, Samples(inputs, Session(path).predict(inputs)))
        module = f"givers_{tmp_path.name}"
        (tmp_path / f"{module}.py").write_text(DATA)
        tensor = TensorSpec.from_dict({"name": "x", "dtype": "fp32", "shape": ["batch", WIDTH]})
        made = OptimiseJob(
            root=tmp_path,
            name="net",
            variant="v",
            precision=precision,
            exported=exported,
            inputs=(tensor,),
            outputs=(replace(tensor, name="y"),),
            dims={"batch": Dim(name="batch", min=1, opt=4, max=8)},
            batch_dim="batch",
            tolerances=default_tolerances(precision),
            calibration=f"{module}:{calibration}" if calibration else None,
            state=tmp_path / ".tt",
        )
        if metric := changes.pop("metric", None):
            changes["metric"] = f"{module}:{metric}"
        return OptimiseJob.from_json(replace(made, **changes).to_json())

    return job


@pytest.fixture(autouse=True)
def speed(monkeypatch):
    """Give every variant the same speed; ``timing`` has tests of its own."""
    figures = {"ratio": 0.5, "low": 0.4, "high": 0.6, "base_ms": 1.0, "variant_ms": 2.0}
    given = Speed(**figures, faster=False, rounds=9, threads=1, cpu=describe_cpu())
    monkeypatch.setattr(worker, "time_variant", lambda *args, **kwargs: given)


def perform(job, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    report = worker.perform(job, out, Silent())
    return OptimiseReport.from_dict(report.as_dict()), out


TWO_LAYERS = "(float[batch,16] x) => (float[batch,16] y) { h = MatMul(x, w1) r = Relu(h) y = MatMul(r, w2) }"


def test_int8_by_every_calibrator_and_the_best_is_taken(job, tmp_path):
    report, out = perform(job(TWO_LAYERS), tmp_path)
    tried = {entry["method"]: entry["score"] for entry in report.precision["tried"]}
    assert set(tried) == {"minmax", "entropy", "percentile"}
    assert tried[report.precision["method"]] == max(tried.values())
    assert [entry["run"] for entry in report.parity] == ["as written", "on this CPU"]
    assert report.precision["placement"]["int8"] == 2
    assert (out / "model.onnx").is_file()
    assert report.dependencies == [f"givers_{tmp_path.name}.py"]


@pytest.mark.parametrize(
    ("precision", "devices", "ways"),
    [
        ("int8", {"on_gpu": False}, ["on this CPU"]),
        ("int8", {"on_cpu": False}, ["as written"]),
        ("fp16", {"on_gpu": False}, ["as written"]),
        ("int8-dynamic", {}, ["as written", "on this CPU"]),
    ],
)
def test_it_is_judged_in_the_ways_that_it_may_be_served(job, tmp_path, precision, devices, ways):
    calibration = None if precision == "int8-dynamic" else "batches"
    report, _ = perform(job(TWO_LAYERS, precision, calibration, **devices), tmp_path)
    assert [entry["run"] for entry in report.parity] == ways


@pytest.mark.parametrize(("on_gpu", "kind"), [(True, np.int8), (False, np.uint8)])
def test_on_cpus_alone_activations_have_the_integers_of_its_kernels(job, tmp_path, on_gpu, kind):
    _, out = perform(job(TWO_LAYERS, on_gpu=on_gpu), tmp_path)
    assert weight(out / "model.onnx", "x/int8_zero_point").dtype == kind


def test_only_the_calibrators_that_are_named_are_tried(job, tmp_path):
    report, _ = perform(job(TWO_LAYERS, calibrators=("minmax",)), tmp_path)
    assert [entry["method"] for entry in report.precision["tried"]] == ["minmax"]


def test_what_is_not_faster_is_said(job, tmp_path):
    report, _ = perform(job(TWO_LAYERS, "int8-dynamic", None), tmp_path)
    assert report.speed["faster"] is False
    assert any(note.startswith("not faster than fp32 here: ") for note in report.notes)


def test_the_rest_in_fp16_is_rounded_as_a_gpu_does(job, tmp_path):
    report, _ = perform(job(TWO_LAYERS, "int8-fp16", opset=19), tmp_path)
    assert report.onnx["opset"][""] == 19
    assert report.precision["placement"]["int8"] == 2


def test_a_release_without_fp16_in_qdq_is_named(job, tmp_path):
    with pytest.raises(ExportError, match="needs opset 19"):
        perform(job(TWO_LAYERS, "int8-fp16", opset=18), tmp_path)


THREE = """(float[batch,16] x) => (float[batch,16] y) {
    h = MatMul(x, w1) r = Relu(h) k = MatMul(r, w2) s = Relu(k) y = MatMul(s, w3)
}"""


def test_first_and_last_layers_are_left_alone_where_they_hurt(job, tmp_path):
    found = {**hidden_outlier(), **weights("w3")}
    report, _ = perform(job(THREE, calibration="outlier", weights=found), tmp_path)
    assert report.precision["method"].endswith(" with its ends in FP32")
    assert set(report.precision["placement"]["others"]) == {"h", "y"}
    assert report.precision["search"] == {}


def hidden_outlier():
    """Return weights that make nothing of the first column of x, whose values are the largest."""
    found = weights("w1", "w2")
    found["w1"][0] = 0
    return found


def damaged_in_the_middle():
    """Return weights that give the input of the second layer a large column, which it does not read."""
    found = weights("w1", "w2", "w3", "w4")
    found["w1"][:, 0] *= 1000
    found["w2"][0] = 0
    return found


FOUR = """(float[batch,16] x) => (float[batch,16] y) {
    h = MatMul(x, w1) r = Relu(h) k = MatMul(r, w2) s = Relu(k) m = MatMul(s, w3) t = Relu(m)
    y = MatMul(t, w4)
}"""


def test_the_layer_that_does_the_damage_is_given_back_and_no_other(job, tmp_path):
    report, _ = perform(job(FOUR, weights=damaged_in_the_middle()), tmp_path)
    assert report.precision["search"]["kept_layers"] == ["k"]
    assert report.precision["kept"]["k"].startswith("without it in FP32")
    assert report.precision["placement"]["others"] == {"k": report.precision["kept"]["k"]}
    assert report.precision["placement"]["int8"] == 3
    assert all(not entry["ok"] for entry in report.precision["tried"])
    assert all(not output["problem"] for entry in report.parity for output in entry["outputs"])


def test_the_search_goes_on_where_it_was(job, tmp_path, monkeypatch):
    first = job(FOUR, weights=damaged_in_the_middle())
    perform(first, tmp_path)
    judged = []
    original = worker.Judge.__call__
    monkeypatch.setattr(
        worker.Judge, "__call__", lambda self, path: judged.append(path) or original(self, path)
    )
    (tmp_path / "out").rename(tmp_path / "before")
    report, _ = perform(first, tmp_path)
    assert report.precision["search"]["kept_layers"] == ["k"]
    assert len(judged) == 5  # three calibrators, one with its ends kept, and the final file; no trial


def test_what_the_search_remembers_of_other_data_is_not_believed(job, tmp_path, monkeypatch):
    """A remembered judgement that no longer holds is found out when the final file is judged."""
    first = job(FOUR, weights=damaged_in_the_middle())
    monkeypatch.setattr(worker, "_search_key", lambda *given: "the same whatever the data")
    perform(first, tmp_path)
    memory = tmp_path / ".tt/v.search.json"
    stored = json.loads(memory.read_text())
    for trial in stored["trials"].values():
        trial["ok"] = True  # as if every variant had passed, the one without anything kept included
    memory.write_text(json.dumps(stored))
    (tmp_path / "out").rename(tmp_path / "before")
    report, _ = perform(first, tmp_path)
    assert report.precision["search"]["kept_layers"] == ["k"]
    assert all(not output["problem"] for entry in report.parity for output in entry["outputs"])


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_keep_that_leaves_nothing_is_refused(job, tmp_path, precision):
    with pytest.raises(ExportError, match=f"nothing of v is in {precision}: keep names every layer"):
        perform(job(TWO_LAYERS, precision, keep=("*",)), tmp_path)


def test_a_state_folder_that_cannot_be_used_costs_time_only(job, tmp_path):
    (tmp_path / ".tt").write_text("a file in its place")
    report, _ = perform(job(FOUR, weights=damaged_in_the_middle()), tmp_path)
    assert report.precision["search"]["kept_layers"] == ["k"]


def test_a_gate_that_nothing_passes_fails_with_the_curve(job, tmp_path):
    tight = Tolerances(default=Tolerance(absolute=1e-9, relative=0.0))
    with pytest.raises(ParityError, match="net: v is not close enough to the original") as caught:
        perform(job(TWO_LAYERS, tolerances=tight), tmp_path)
    assert "layers kept, of 2" in caught.value.detail
    assert "with all 2 layers in FP32 only, which leaves nothing to gain" in caught.value.message
    assert "a golden sample of random inputs: give real ones with sample" in caught.value.hint


def test_nodes_named_by_keep_stay_as_they_are(job, tmp_path):
    report, _ = perform(job(TWO_LAYERS, keep=("r*", "y")), tmp_path)
    assert report.precision["placement"]["int8"] == 1
    assert report.precision["kept"]["y"] == "kept in floating point as asked"


def test_a_pattern_that_matches_nothing_is_refused(job, tmp_path):
    with pytest.raises(ExportError, match=r"no node of model.onnx matches '/head/"):
        perform(job(TWO_LAYERS, keep=("/head/*",)), tmp_path)


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_the_metric_decides(job, tmp_path, lost):
    measured = job(TWO_LAYERS, metric="score", original_metric=1.0 + lost, max_absolute_drop=0.1)
    if lost:
        with pytest.raises(ParityError, match=r":score falls from 1.5 to 1, allowed is a drop of 0.1"):
            perform(measured, tmp_path)
    else:
        report, _ = perform(measured, tmp_path)
        assert {**report.accuracy, "metric": ""} == {
            "metric": "",
            "original": 1.0,
            "exported": 1.0,
            "drop": 0.0,
        }


LOUD = """(float[batch,16] x) => (float[batch,16] y) {
    s = Constant<value_float = 100.0>() h = MatMul(x, w1) a = Mul(h, s) q = Mul(a, a) y = Sqrt(q)
}"""


def test_what_overflows_in_fp16_stays_in_fp32_with_the_reason(job, tmp_path):
    report, _ = perform(job(LOUD, "fp16", weights=weights("w1")), tmp_path)
    assert "q" in report.precision["kept"]
    assert report.precision["lowered"] > 0
    assert report.parity[0]["run"] == "as written"


def test_an_fp16_file_that_overflows_on_a_gpu_is_not_taken(job, tmp_path, monkeypatch):
    """ONNX Runtime's CPU would call it right: it computes in FP32."""
    monkeypatch.setattr("triton_toolkit.optimise.methods.scan_ranges", pretended)
    with pytest.raises(ParityError, match=r"as written: output 'y' .* inf, expected"):
        perform(job(LOUD, "fp16", weights=weights("w1")), tmp_path)


def pretended(model, batches):
    """Return ranges as they would be for inputs a hundred times smaller."""
    from triton_toolkit.optimise.ranges import scan_ranges

    return scan_ranges(model, [{"x": batch["x"] / 100} for batch in batches])


def test_inputs_that_the_model_cannot_take_are_told(job, tmp_path):
    text = """(float[batch,16] x) => (float[batch,16] y) {
        h = MatMul(x, w1) rows = Constant<value_ints=[4, 16]>() k = Reshape(h, rows) y = MatMul(k, w2)
    }"""
    with pytest.raises(ExportError, match=r"fails on inputs to compare on, x \[32, 16\]") as caught:
        perform(job(text, golden_rows=4), tmp_path)
    assert "sample function" in caught.value.hint
