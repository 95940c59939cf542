"""Calibration: data that is refused, ranges that are right, tables that are kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit.optimise.int8_models import batches, convnet, node, normal, save
from triton_toolkit.errors import ExportError
from triton_toolkit.optimise import calibration, calibration_cache
from triton_toolkit.optimise.calibration import LEAST_SAMPLES, calibrate, check_calibration

IMAGE = (8, 3, 8, 8)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convnet(tmp_path_factory.mktemp("net") / "model.onnx")


def test_enough_different_samples_are_counted():
    assert check_calibration(batches(IMAGE)) == 32


def test_too_few_samples_are_refused_with_the_least_number_and_why():
    with pytest.raises(ExportError, match=r"has 24 samples; INT8 needs at least 32: .* 1/\(n \+ 1\)"):
        check_calibration(batches(IMAGE, 3))


def test_no_samples_are_refused():
    with pytest.raises(ExportError, match="has 0 samples"):
        check_calibration([])


def test_the_same_sample_again_and_again_is_refused():
    one = normal(1, 1, 3, 8, 8)
    with pytest.raises(ExportError, match="has 64 samples, but only 1 different one;"):
        check_calibration([{"x": np.repeat(one, 64, axis=0)}])


def test_a_constant_input_is_refused():
    ids = np.arange(64).reshape(64, 1)
    with pytest.raises(ExportError, match=r"input 'x' is 0\.5 everywhere"):
        check_calibration([{"ids": ids, "x": np.full((64, 3), 0.5, np.float32)}])


def test_a_constant_mask_beside_varied_tokens_is_fine():
    """An attention mask without padding is all ones; only floating-point inputs carry ranges."""
    ids = np.arange(320).reshape(32, 10)
    assert check_calibration([{"ids": ids, "mask": np.ones((32, 10), np.int64)}]) == 32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(value):
    data = batches(IMAGE)
    data[2]["x"][5, 1, 0, 3] = value
    with pytest.raises(ExportError, match=rf"batch 2, input 'x' holds {value} at \[5, 1, 0, 3\]"):
        check_calibration(data)


def test_a_batch_is_one_sample_where_the_first_axis_is_none():
    data = batches((3, 8), LEAST_SAMPLES)
    assert check_calibration(data, batched=False) == LEAST_SAMPLES
    with pytest.raises(ExportError, match="has 31 samples"):
        check_calibration(data[1:], batched=False)


def test_bytes_are_told_apart():
    texts = [{"text": np.array([b"%d" % i], object)} for i in range(LEAST_SAMPLES)]
    assert check_calibration(texts) == LEAST_SAMPLES


def test_ranges_are_those_of_the_inner_tensors(net):
    data = batches(IMAGE)
    table = calibrate(net, data, ["minmax"])["minmax"]
    assert sorted(table) == ["flat", "r1", "x"]
    values = np.concatenate([batch["x"] for batch in data])
    assert table["x"] == (values.min(), values.max())
    assert table["r1"] == pytest.approx((0, inner(net, "r1", data).max()), rel=1e-5)


def inner(path: Path, tensor: str, data: list[dict[str, np.ndarray]]) -> np.ndarray:
    """What onnx's own evaluator says that a tensor holds."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    model.graph.output.append(onnx.ValueInfoProto(name=tensor))
    run = ReferenceEvaluator(model)
    return np.concatenate([run.run([tensor], batch)[0] for batch in data])


def test_batches_may_differ_in_size(net):
    data = [{"x": normal(1, 2, 3, 8, 8)}, {"x": 3 * normal(2, 5, 3, 12, 6)}]
    assert calibrate(net, data, ["minmax"])["minmax"]["x"][1] == data[1]["x"].max()


@pytest.fixture
def runs(monkeypatch) -> list[list[str]]:
    """The tensors that each run of a session was asked for."""
    asked: list[list[str]] = []
    predict = calibration.Session.predict

    def noted(self, arrays, outputs=None):
        asked.append(outputs)
        return predict(self, arrays, outputs)

    monkeypatch.setattr(calibration.Session, "predict", noted)
    return asked


def test_all_methods_come_from_one_pass(net, runs):
    tables = calibrate(net, batches(IMAGE, 3))
    assert list(tables) == ["minmax", "entropy", "percentile"]
    assert len(runs) == 3
    assert tables["percentile"]["x"][1] <= tables["minmax"]["x"][1]


def test_tensors_are_run_in_groups_where_memory_is_short(net, monkeypatch, runs):
    expected = calibrate(net, batches(IMAGE, 1), ["minmax"])
    monkeypatch.setattr(calibration, "_MOST_BYTES", 1000)
    assert calibrate(net, batches(IMAGE, 1), ["minmax"]) == expected
    assert runs == [["flat", "r1"], ["flat"], ["r1"]]


def test_external_data_is_read(tmp_path, net):
    path = convnet(tmp_path / "model.onnx", external=True)
    assert calibrate(path, batches(IMAGE)) == calibrate(net, batches(IMAGE))


def test_nan_inside_the_model_is_refused_with_its_node(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4]},
        [node("Sqrt", "x", "root", "the_root"), node("MatMul", "root w", "y")],
        {"w": normal(1, 4, 2)},
        {"y": ["N", 2]},
    )
    with pytest.raises(ExportError, match=r"tensor 'root', which node 'the_root' \(Sqrt\) .* batch 1"):
        calibrate(path, [{"x": np.ones((1, 4), np.float32)}, {"x": normal(1, 8, 4)}])


def test_an_input_that_the_model_does_not_take_is_named(net):
    with pytest.raises(ExportError, match="the model fails on calibration batch 0"):
        calibrate(net, [{"x": normal(1, 2, 4, 8, 8)}])


def test_a_quantized_model_is_refused(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4]},
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")],
        {"s": np.float32(0.1), "z": np.int8(0)},
        {"y": ["N", 4]},
    )
    with pytest.raises(ExportError, match="quantized already: node 'q' is a QuantizeLinear"):
        calibrate(path, batches((8, 4)))


class Cache:
    """A model, its data and a folder of tables."""

    def __init__(self, folder: Path) -> None:
        self.model = convnet(folder / "model.onnx")
        self.data = batches(IMAGE)
        self.folder = folder / "tables"

    def run(self, method: str = "minmax") -> dict[str, tuple[float, float]]:
        return calibrate(self.model, self.data, [method], cache=self.folder)[method]

    def mark(self) -> None:
        """Change the only table, so that its use shows."""
        (path,) = self.folder.iterdir()
        value = json.loads(path.read_text())
        value["ranges"]["x"] = [-1.5, 12345.0]
        path.write_text(json.dumps(value))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path)
    made.run()
    made.mark()
    return made


def test_a_table_is_used_again(cache):
    assert cache.run()["x"] == (-1.5, 12345.0)


def test_a_model_that_moved_uses_its_table(cache):
    cache.model = cache.model.rename(cache.model.with_name("other.onnx"))
    assert cache.run()["x"][1] == 12345.0


def change_weight(cache: Cache) -> None:
    model = onnx.load(cache.model)
    raw = bytearray(model.graph.initializer[0].raw_data)
    raw[0] ^= 1
    model.graph.initializer[0].raw_data = bytes(raw)
    onnx.save(model, cache.model)


def change_value(cache: Cache) -> None:
    cache.data[1]["x"][0, 0, 0, 0] += 1


def change_order(cache: Cache) -> None:
    cache.data.reverse()


def change_split(cache: Cache) -> None:
    joined = np.concatenate([batch["x"] for batch in cache.data])
    cache.data = [{"x": joined}]


@pytest.mark.parametrize("change", [change_weight, change_value, change_order, change_split])
def test_a_changed_model_or_changed_data_is_calibrated_anew(cache, change):
    change(cache)
    assert cache.run()["x"][1] < 100
    assert len(list(cache.folder.iterdir())) == 2


def test_another_method_has_a_table_of_its_own(cache):
    assert cache.run("percentile")["x"][1] < 100


def test_another_version_of_the_method_is_calibrated_anew(cache, monkeypatch):
    monkeypatch.setattr(calibration_cache, "ALGORITHM", 999)
    assert cache.run()["x"][1] < 100


def test_changed_external_data_is_calibrated_anew(tmp_path):
    cache = Cache(tmp_path)
    convnet(cache.model, external=True)
    cache.run()
    cache.mark()
    data = cache.model.with_name("model.onnx.data")
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert cache.run()["x"][1] < 100


def test_a_table_that_lacks_a_tensor_is_not_used(cache):
    """NVIDIA/TensorRT#747: a table without scales for some tensors was taken, and the layers ran wrong."""
    (path,) = cache.folder.iterdir()
    value = json.loads(path.read_text())
    del value["ranges"]["r1"]
    path.write_text(json.dumps(value))
    table = cache.run()
    assert table["x"][1] < 100
    assert sorted(table) == ["flat", "r1", "x"]
    assert "r1" in json.loads(path.read_text())["ranges"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"ranges": []}', '{"key": {}, "ranges": {"x": [0, 1]}}', "\udc80"],
    ids=["empty", "cut", "list", "no key", "other key", "not utf-8"],
)
def test_a_damaged_table_is_not_used(cache, text):
    (path,) = cache.folder.iterdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cache.run()["x"][1] < 100


@pytest.mark.parametrize("bounds", [[0], ["a", 1], None, [None, 1], [math.nan, 1]])
def test_a_table_with_a_damaged_range_is_not_used(cache, bounds):
    (path,) = cache.folder.iterdir()
    value = json.loads(path.read_text())
    value["ranges"]["r1"] = bounds
    path.write_text(json.dumps(value))
    assert cache.run()["x"][1] < 100


def test_infinite_ranges_survive_the_table(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4]},
        [node("Log", "x", "log"), node("MatMul", "log w", "y")],
        {"w": normal(1, 4, 2)},
        {"y": ["N", 2]},
    )
    data = [{"x": np.array([[0, 1, 2, 4]], np.float32)}]
    for _ in range(2):
        assert calibrate(path, data, ["entropy"], cache=tmp_path / "c")["entropy"]["log"] == (
            -math.inf,
            pytest.approx(math.log(4)),
        )
