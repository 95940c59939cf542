"""Our ``onnxruntime`` backend under the real server: one repository of many models, one server."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from triton_toolkit.core.tensors import DataType
from triton_toolkit.server.embedded import EmbeddedServer

pytestmark = pytest.mark.server

Shape = Sequence[int | str]
DTYPES = list(DataType)


def values(dtype: DataType, shape: Sequence[int], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return values of a type that survive no conversion: extremes included."""
    rng = np.random.default_rng(seed)
    if dtype is DataType.BYTES:
        texts = np.array(["", "tritón", "a\nb", "日本"], dtype=np.object_)
        return texts[rng.integers(0, len(texts), shape)]
    if dtype is DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    array = rng.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
    array.flat[0] = info.max
    return array


def info(name: str, dtype: DataType, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype.onnx, list(shape))


def save(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    *,
    initializers: Sequence[onnx.TensorProto] = (),
    config: str | None = None,
    file: str = "1/model.onnx",
    **options: Any,
) -> None:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path = folder / file
    path.parent.mkdir(parents=True)
    onnx.save(model, str(path), **options)
    if config is not None:
        (folder / "config.pbtxt").write_text(
            f'backend: "onnxruntime"\ninstance_group [{{ kind: KIND_CPU count: 1 }}]\n{config}'
        )


def identities(pairs: dict[str, tuple[DataType, Shape]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return nodes, inputs and outputs of a model that gives each input ``x_…`` back as ``y_…``."""
    nodes = [helper.make_node("Identity", [f"x_{name}"], [f"y_{name}"]) for name in pairs]
    inputs = [info(f"x_{name}", dtype, shape) for name, (dtype, shape) in pairs.items()]
    outputs = [info(f"y_{name}", dtype, shape) for name, (dtype, shape) in pairs.items()]
    return nodes, inputs, outputs


def entries(kind: str, items: dict[str, tuple[DataType, Sequence[int]]]) -> str:
    listed = ", ".join(
        f'{{ name: "{name}" data_type: {dtype.triton} dims: [{", ".join(map(str, dims))}] }}'
        for name, (dtype, dims) in items.items()
    )
    return f"{kind} [ {listed} ]\n"


def build_dtypes(root: Path) -> None:
    pairs: dict[str, tuple[DataType, Shape]] = {dtype.spec: (dtype, ["n", 3]) for dtype in DTYPES}
    save(
        root / "dtypes",
        *identities(pairs),
        config="max_batch_size: 8\n"
        + entries("input", {f"x_{dtype.spec}": (dtype, [3]) for dtype in DTYPES})
        + entries("output", {f"y_{dtype.spec}": (dtype, [3]) for dtype in DTYPES}),
    )


RANKS: dict[str, tuple[DataType, Shape]] = {
    "scalar": (DataType.FP32, []),
    "text": (DataType.BYTES, []),
    "one": (DataType.INT64, ["a"]),
    "two": (DataType.FP16, [2, "b"]),
    "six": (DataType.UINT8, [1, 2, 1, "c", 1, 2]),
}


def build_shapes(root: Path) -> None:
    save(root / "ranks", *identities(RANKS), config="")
    config = """max_batch_size: 4
        input [ { name: "x_item" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } },
                { name: "x_grid" data_type: TYPE_INT32 dims: [4] reshape { shape: [2, 2] } } ]
        output [ { name: "y_item" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } },
                 { name: "y_grid" data_type: TYPE_INT32 dims: [4] reshape { shape: [2, 2] } } ]"""
    pairs: dict[str, tuple[DataType, Shape]] = {
        "item": (DataType.FP32, ["n"]),
        "grid": (DataType.INT32, ["n", 2, 2]),
    }
    save(root / "reshape", *identities(pairs), config=config)
    nonzero = [helper.make_node("NonZero", ["x"], ["y"])]
    save(
        root / "found",
        nonzero,
        [info("x", DataType.FP32, ["a"])],
        [info("y", DataType.INT64, [1, "found"])],
        config="",
    )


def build_files(root: Path) -> None:
    """Models whose file lies elsewhere: its weights apart, a folder, another name."""
    weight = onnx.numpy_helper.from_array(np.full(2000, 3.0, np.float32), "w")
    parts: Any = (
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", DataType.FP32, ["n", 2000])],
        [info("y", DataType.FP32, ["n", 2000])],
    )
    external = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    save(root / "external", *parts, initializers=[weight], **external)
    save(root / "folder", *parts, initializers=[weight], file="1/model.onnx/model.onnx", **external)
    save(
        root / "named",
        *parts,
        initializers=[weight],
        file="1/net.onnx",
        config='default_model_filename: "net.onnx"\n',
    )


def build_completion(root: Path) -> None:
    pairs: dict[str, tuple[DataType, Shape]] = {
        "item": (DataType.FP32, ["n"]),
        "row": (DataType.FP32, ["n", 3, "m"]),
    }
    save(root / "auto_batched", *identities(pairs))
    save(root / "auto_fixed", *identities({"row": (DataType.FP32, [2, 3])}))
    save(
        root / "auto_outputs",
        *identities(pairs),
        config="max_batch_size: 16\n"
        + entries("input", {"x_item": (DataType.FP32, [1]), "x_row": (DataType.FP32, [3, -1])}).replace(
            "dims: [1]", "dims: [1] reshape { }"
        ),
    )
    save(root / "auto_refused", *identities({"row": (DataType.FP32, [2, 3])}), config="max_batch_size: 2\n")


def build_batching(root: Path) -> None:
    """A table look-up: an index that is out of range makes ONNX Runtime fail the whole run."""
    table = onnx.numpy_helper.from_array(np.arange(10, dtype=np.float32) * 10, "table")
    save(
        root / "lookup",
        [helper.make_node("Gather", ["table", "index"], ["value"])],
        [info("index", DataType.INT64, ["n", 1])],
        [info("value", DataType.FP32, ["n", 1])],
        initializers=[table],
        config="""max_batch_size: 8
            dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 2000000 }""",
    )
    save(
        root / "first_row",
        [helper.make_node("Compress", ["x", "keep"], ["y"], axis=0)],
        [info("x", DataType.FP32, ["n", 2])],
        [info("y", DataType.FP32, ["m", 2])],
        initializers=[helper.make_tensor("keep", TensorProto.BOOL, [1], [True])],
        config="max_batch_size: 8\n",
    )
    save(
        root / "two_instances",
        *identities({"v": (DataType.FP32, ["n", 1])}),
        config="max_batch_size: 8\n",
    )
    config = root / "two_instances/config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))


def build_ragged(root: Path) -> None:
    """Lengths from the offsets that the backend makes, and the values, doubled, cut as they came."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("Slice", ["offsets", "one", "end", "zero"], ["ends"]),
        helper.make_node("Slice", ["offsets", "zero", "minus", "zero"], ["starts"]),
        helper.make_node("Sub", ["ends", "starts"], ["counts"]),
        helper.make_node("Unsqueeze", ["counts", "one"], ["lengths"]),
    ]
    numbers = {"zero": 0, "one": 1, "minus": -1, "end": 2**31}
    save(
        root / "ragged",
        nodes,
        [info("x", DataType.FP32, ["n"]), info("offsets", DataType.INT32, ["m"])],
        [info("doubled", DataType.FP32, ["n"]), info("lengths", DataType.INT32, ["b", 1])],
        initializers=[helper.make_tensor(name, TensorProto.INT64, [1], [n]) for name, n in numbers.items()],
        config="""max_batch_size: 8
            input [ { name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true } ]
            batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "offsets"
              data_type: TYPE_INT32 source_input: "x" } ]
            output [ { name: "doubled" data_type: TYPE_FP32 dims: [-1] },
                     { name: "lengths" data_type: TYPE_INT32 dims: [1] } ]
            batch_output [ { target_name: "doubled" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]
            dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 2000000 }""",
    )


def build_sequence(root: Path) -> None:
    save(
        root / "sequence",
        [helper.make_node("Add", ["x", "START"], ["y"])],
        [info("x", DataType.INT32, ["n", 1]), info("START", DataType.INT32, ["n", 1])],
        [info("y", DataType.INT32, ["n", 1])],
        config="""max_batch_size: 4
            input [ { name: "x" data_type: TYPE_INT32 dims: [1] } ]
            output [ { name: "y" data_type: TYPE_INT32 dims: [1] } ]
            sequence_batching { control_input [ { name: "START"
              control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 100] } ] } ] }""",
    )


def build_settings(root: Path) -> None:
    parts = identities({"v": (DataType.FP32, ["n", 1])})
    good = {
        "intra_op_thread_count": "1",
        "execution_mode": "1",
        "inter_op_thread_count": "2",
        "enable_mem_arena": "off",
        "gpu_mem_limit": "1000",
    }
    listed = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in good.items()
    )
    save(
        root / "settings",
        *parts,
        config=listed + "optimization { graph { level: 2 } cuda { graphs: true } }\n",
    )
    save(
        root / "bad_setting",
        *parts,
        config='parameters { key: "execution_mode" value { string_value: "2" } }\n',
    )
    wrong = entries("input", {"x_v": (DataType.FP32, [1])}) + entries("output", {"y_v": (DataType.FP64, [1])})
    save(root / "bad_output", *parts, config="max_batch_size: 2\n" + wrong)
    (root / "bad_file/1").mkdir(parents=True)
    (root / "bad_file/1/model.onnx").write_bytes(b"not a model")
    shutil.copytree(root / "settings", root / "no_file")
    (root / "no_file/1/model.onnx").unlink()


@pytest.fixture(scope="module")
def server(
    embedded_server: Callable[..., EmbeddedServer], tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedServer:
    root = tmp_path_factory.mktemp("backend")
    for build in (
        build_dtypes,
        build_shapes,
        build_files,
        build_completion,
        build_batching,
        build_ragged,
        build_sequence,
        build_settings,
    ):
        build(root)
    return embedded_server(root)


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        yield client


def infer(
    client: grpcclient.InferenceServerClient,
    model: str,
    inputs: dict[str, np.ndarray[Any, Any]],
    outputs: Sequence[str] = (),
    **options: Any,
) -> dict[str, np.ndarray[Any, Any]]:
    sent = []
    for name, array in inputs.items():
        tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        sent.append(tensor)
    wanted = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
    result = client.infer(model, sent, outputs=wanted, client_timeout=30, **options)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def model_config(server: EmbeddedServer, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.http_url}/v2/models/{model}/config", timeout=10) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


def text_of(array: np.ndarray[Any, Any]) -> list[Any]:
    return [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.spec)
def test_each_dtype_comes_back_unchanged(client: grpcclient.InferenceServerClient, dtype: DataType) -> None:
    sent = {f"x_{other.spec}": values(other, (4, 3)) for other in DTYPES}
    received = infer(client, "dtypes", sent, [f"y_{dtype.spec}"])
    assert list(received) == [f"y_{dtype.spec}"]  # the other outputs were not asked for
    array = received[f"y_{dtype.spec}"]
    assert array.dtype == np.dtype(dtype.numpy)
    assert array.shape == (4, 3)
    assert text_of(array) == text_of(sent[f"x_{dtype.spec}"])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("scalar", (1,)), ("text", (1,)), ("one", (5,)), ("two", (2, 7)), ("six", (1, 2, 1, 3, 1, 2))],
)
def test_each_rank_without_a_batch_dimension(
    client: grpcclient.InferenceServerClient, name: str, shape: tuple[int, ...]
) -> None:
    shapes = {"scalar": (1,), "text": (1,), "one": (5,), "two": (2, 7), "six": (1, 2, 1, 3, 1, 2)}
    sent = {f"x_{key}": values(RANKS[key][0], shapes[key], seed=3) for key in RANKS}
    received = infer(client, "ranks", sent)
    assert received[f"y_{name}"].shape == shape
    assert text_of(received[f"y_{name}"]) == text_of(sent[f"x_{name}"])


def test_a_reshape_is_the_servers_and_the_model_sees_its_own_shape(
    client: grpcclient.InferenceServerClient,
) -> None:
    sent = {"x_item": values(DataType.FP32, (3, 1)), "x_grid": values(DataType.INT32, (3, 4))}
    received = infer(client, "reshape", sent)
    assert received["y_item"].tolist() == sent["x_item"].tolist()
    assert received["y_grid"].tolist() == sent["x_grid"].tolist()


def test_an_output_may_be_empty(client: grpcclient.InferenceServerClient) -> None:
    assert infer(client, "found", {"x": np.array([0, 5, 0, 7], np.float32)})["y"].tolist() == [[1, 3]]
    assert infer(client, "found", {"x": np.zeros(3, np.float32)})["y"].shape == (1, 0)


@pytest.mark.parametrize("model", ["external", "folder", "named"])
def test_the_model_file_may_lie_elsewhere(client: grpcclient.InferenceServerClient, model: str) -> None:
    x = values(DataType.FP32, (2, 2000))
    np.testing.assert_array_equal(infer(client, model, {"x": x})["y"], x * 3)


def test_missing_inputs_outputs_and_batching_are_completed(server: EmbeddedServer) -> None:
    config = model_config(server, "auto_batched")
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    tensors = {tensor["name"]: tensor for tensor in (*config["input"], *config["output"])}
    assert tensors["x_row"]["dims"] == tensors["y_row"]["dims"] == [3, -1]
    assert tensors["x_item"]["dims"] == tensors["y_item"]["dims"] == [1]
    assert tensors["x_item"]["reshape"]["shape"] == tensors["y_item"]["reshape"]["shape"] == []
    assert tensors["x_item"]["data_type"] == "TYPE_FP32"


def test_a_completed_model_serves(client: grpcclient.InferenceServerClient) -> None:
    sent = {"x_item": values(DataType.FP32, (2, 1)), "x_row": values(DataType.FP32, (2, 3, 5))}
    received = infer(client, "auto_batched", sent)
    np.testing.assert_array_equal(received["y_row"], sent["x_row"])
    np.testing.assert_array_equal(received["y_item"], sent["x_item"])


def test_a_model_with_a_fixed_first_dimension_is_completed_without_batching(server: EmbeddedServer) -> None:
    config = model_config(server, "auto_fixed")
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"][0]["dims"] == [2, 3]


def test_what_the_config_lists_is_kept_and_the_rest_completed(server: EmbeddedServer) -> None:
    config = model_config(server, "auto_outputs")
    assert config["max_batch_size"] == 16
    assert config["dynamic_batching"]["preferred_batch_size"] == [16]
    assert [tensor["name"] for tensor in config["output"]] == ["y_item", "y_row"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("auto_refused", "model does not support batching while non-zero max_batch_size is specified"),
        ("bad_setting", "Expected values for  execution_mode are 0 or 1 but got 2"),
        ("bad_output", "configuration expects datatype TYPE_FP64 for output 'y_v', model provides TYPE_FP32"),
        ("bad_file", "onnx runtime error 7: Load model from"),
        ("no_file", "unable to find '"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(server: EmbeddedServer, model: str, reason: str) -> None:
    report = next(report for report in server.models() if report.name == model)
    assert report.state == "UNAVAILABLE"
    assert reason in report.reason
    assert server.load_error(model) == report.reason


def test_settings_for_gpus_are_noted_and_do_nothing(server: EmbeddedServer) -> None:
    log = server.log_text()
    assert "parameters.gpu_mem_limit is a GPU setting" in log
    assert "optimization.cuda is a GPU setting" in log


def test_a_model_with_settings_serves(client: grpcclient.InferenceServerClient) -> None:
    assert infer(client, "settings", {"x_v": np.ones((1, 1), np.float32)})["y_v"].tolist() == [[1.0]]


def test_requests_are_joined_and_each_gets_its_own_rows(client: grpcclient.InferenceServerClient) -> None:
    before = batch_sizes(client, "lookup")
    answers = together(client, "lookup", [[[1]], [[2], [3]], [[4]]])
    assert [answer["value"].ravel().tolist() for answer in answers] == [[10.0], [20.0, 30.0], [40.0]]
    # Not exactly one more: the server counts a batch, this one or an earlier one, after it has answered.
    assert batch_sizes(client, "lookup").get(4, 0) > before.get(4, 0)


def test_a_bad_request_fails_alone(client: grpcclient.InferenceServerClient) -> None:
    answers = together(client, "lookup", [[[1]], [[99]], [[3]], [[4]]])
    assert [isinstance(answer, InferenceServerException) for answer in answers] == [False, True, False, False]
    assert "out of data bounds" in str(answers[1])
    assert answers[3]["value"].tolist() == [[40.0]]


def test_requests_of_different_lengths_are_joined(client: grpcclient.InferenceServerClient) -> None:
    sent = [{"x": np.array([[1, 2]], np.float32)}, {"x": np.array([[3, 4, 5]], np.float32)}]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda inputs: infer(client, "ragged", inputs), sent)
    assert (first["doubled"].tolist(), first["lengths"].tolist()) == ([[2, 4]], [[2]])
    assert (second["doubled"].tolist(), second["lengths"].tolist()) == ([[6, 8, 10]], [[3]])
    assert batch_sizes(client, "ragged") == {2: 1}


def together(client: grpcclient.InferenceServerClient, model: str, requests: list[Any]) -> list[Any]:
    """Send requests at once; the model's queue delay is long enough for one batch of them."""

    def send(rows: Any) -> Any:
        try:
            return infer(client, model, {"index": np.array(rows, np.int64)})
        except InferenceServerException as exc:
            return exc

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, requests))


def batch_sizes(client: grpcclient.InferenceServerClient, model: str) -> dict[int, int]:
    """Return batch size -> how often the server ran it."""
    stats = client.get_inference_statistics(model).model_stats[0]
    return {entry.batch_size: entry.compute_infer.count for entry in stats.batch_stats}


def test_a_text_that_is_not_utf8_is_refused_and_named(client: grpcclient.InferenceServerClient) -> None:
    sent = {f"x_{dtype.spec}": values(dtype, (1, 3)) for dtype in DTYPES}
    sent["x_bytes"] = np.array([[b"ok", b"\xff\xfe", b""]], dtype=np.object_)
    with pytest.raises(InferenceServerException, match=r"'x_bytes': b'\\xff\\xfe' is not UTF-8"):
        infer(client, "dtypes", sent)


def test_an_output_that_lost_its_batch_dimension_is_refused(client: grpcclient.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="expected batch size of 3 in model output, got 1"):
        infer(client, "first_row", {"x": np.ones((3, 2), np.float32)})


def test_several_instances_answer(client: grpcclient.InferenceServerClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: infer(client, "two_instances", {"x_v": np.full((1, 1), n, np.float32)}), range(20)
            )
        )
    assert [int(answer["y_v"][0, 0]) for answer in answers] == list(range(20))


def test_the_sequence_batchers_controls_reach_the_model(client: grpcclient.InferenceServerClient) -> None:
    one = {"x": np.array([[1]], np.int32)}
    first = infer(client, "sequence", one, sequence_id=7, sequence_start=True)
    second = infer(client, "sequence", one, sequence_id=7, sequence_end=True)
    assert (first["y"].tolist(), second["y"].tolist()) == ([[101]], [[1]])
