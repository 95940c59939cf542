"""The parts of the ``onnxruntime`` backend that need no server: config against model, settings, batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import triton_toolkit.server

BACKEND = Path(triton_toolkit.server.__file__).parent / "backends" / "onnxruntime"

Modules = dict[str, Any]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Modules:
    """Import the backend's modules by their bare names, as the stub does."""
    monkeypatch.syspath_prepend(BACKEND)
    import tt_ort_batch
    import tt_ort_session
    import tt_ort_signature

    return {"batch": tt_ort_batch, "session": tt_ort_session, "signature": tt_ort_signature}


def session(
    inputs: dict[str, tuple[int, list[int | str]]], *, initializer: bool = False, sequence: bool = False
) -> ort.InferenceSession:
    """Return a session of a model that gives each input ``x`` back as ``y_x``."""
    nodes = [helper.make_node("Identity", [name], [f"y_{name}"]) for name in inputs]
    made = [helper.make_tensor_value_info(name, *described) for name, described in inputs.items()]
    outputs = [helper.make_tensor_value_info(f"y_{name}", *described) for name, described in inputs.items()]
    constants = []
    if initializer:
        made.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [1]))
        constants.append(helper.make_tensor("bias", TensorProto.FLOAT, [1], [0.5]))
        nodes.append(helper.make_node("Identity", ["bias"], ["y_bias"]))
        outputs.append(helper.make_tensor_value_info("y_bias", TensorProto.FLOAT, [1]))
    if sequence:
        nodes.append(helper.make_node("SequenceConstruct", [next(iter(inputs))], ["many"]))
        outputs.append(helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, None))
    graph = helper.make_graph(nodes, "g", made, outputs, initializer=constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def config(**fields: Any) -> dict[str, Any]:
    """Return a config as Triton gives it to Python, for a model with input ``x`` and output ``y_x``."""
    return {
        "name": "m",
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}],
        "output": [{"name": "y_x", "data_type": "TYPE_FP32", "dims": [-1, 3]}],
        "batch_input": [],
        "batch_output": [],
        **fields,
    }


def tensor(name: str, dims: list[int], data_type: str = "TYPE_FP32", **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **fields}


ROWS: dict[str, tuple[int, list[int | str]]] = {"x": (TensorProto.FLOAT, ["n", 3])}


def check(parts: Modules, given: dict[str, Any], made: ort.InferenceSession) -> None:
    parts["signature"].check(given, parts["signature"].read_signature(made))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(config(), id="dims as the model's"),
        pytest.param(config(input=[tensor("x", [5, 3])]), id="a dynamic input dimension fixed"),
        pytest.param(
            config(max_batch_size=4, input=[tensor("x", [3])], output=[tensor("y_x", [3])]), id="batched"
        ),
    ],
)
def test_a_config_that_fits_is_accepted(parts: Modules, given: dict[str, Any]) -> None:
    check(parts, given, session(ROWS))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            config(input=[tensor("x", [-1, 3]), tensor("z", [1])]),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
            id="too many inputs",
        ),
        pytest.param(
            config(input=[tensor("z", [-1, 3])]),
            "unexpected inference input 'z', allowed inputs are: x",
            id="unknown input",
        ),
        pytest.param(
            config(output=[tensor("z", [-1, 3])]),
            "unexpected inference output 'z', allowed outputs are: y_x",
            id="unknown output",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, 3], "TYPE_INT32")]),
            "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
            id="other type",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, 3], "TYPE_BF16")]),
            "unsupported datatype TYPE_BF16 for input 'x' for model 'm'",
            id="unsupported type",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, 4])]),
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model "
            "configuration specifies 2 dimensions (shape [-1,4])",
            id="other fixed dimension",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, -1])]),
            "the model configuration specifies 2 dimensions (shape [-1,-1])",
            id="dynamic where the model is fixed",
        ),
        pytest.param(
            config(output=[tensor("y_x", [5, 3])]),
            "tensor 'y_x': the model expects 2 dimensions (shape [-1,3])",
            id="fixed where the model's output is dynamic",
        ),
        pytest.param(
            config(max_batch_size=4, input=[tensor("x", [-1, 3])], output=[tensor("y_x", [3])]),
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
            "explicit tensor shape, making complete shape [-1,-1,3])",
            id="batch dimension written twice",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, 3], optional=True)]),
            "configuration expects 0 inputs, model provides 1",
            id="a real input marked optional",
        ),
        pytest.param(
            config(input=[tensor("x", [-1, 3], allow_ragged_batch=True)]),
            "configuration expects model provides input with shape [-1] for ragged input 'x'",
            id="ragged",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(parts: Modules, given: dict[str, Any], words: str) -> None:
    with pytest.raises(parts["signature"].ConfigError) as caught:
        check(parts, given, session(ROWS))
    assert words in str(caught.value)


def test_batching_needs_a_dynamic_first_dimension(parts: Modules) -> None:
    fixed: dict[str, tuple[int, list[int | str]]] = {"x": (TensorProto.FLOAT, [2, 3])}
    given = config(max_batch_size=2, input=[tensor("x", [3])], output=[tensor("y_x", [3])])
    with pytest.raises(
        parts["signature"].ConfigError, match=r"first dimension must be -1; but shape .* is \[2,3\]"
    ):
        check(parts, given, session(fixed))


def test_a_scalar_is_one_element(parts: Modules) -> None:
    made = session({"x": (TensorProto.FLOAT, [])})
    check(parts, config(input=[tensor("x", [1, 1])], output=[tensor("y_x", [1])]), made)
    with pytest.raises(
        parts["signature"].ConfigError, match=r"scalar tensor 'x', should only provide 1 .*: \[2\]\."
    ):
        check(parts, config(input=[tensor("x", [2])], output=[tensor("y_x", [1])]), made)


def test_an_initializer_may_be_an_optional_input(parts: Modules) -> None:
    given = config(
        input=[tensor("x", [-1, 3]), tensor("bias", [1], optional=True)], output=[tensor("y_x", [-1, 3])]
    )
    check(parts, given, session(ROWS, initializer=True))


def test_an_optional_input_excludes_batching(parts: Modules) -> None:
    given = config(
        max_batch_size=2,
        input=[tensor("x", [3]), tensor("bias", [1], optional=True)],
        output=[tensor("y_x", [3])],
    )
    with pytest.raises(parts["signature"].ConfigError, match="optional input 'bias' is not supported"):
        check(parts, given, session(ROWS, initializer=True))


def test_an_output_that_is_no_tensor_is_refused(parts: Modules) -> None:
    with pytest.raises(parts["signature"].ConfigError, match="'ONNX_TYPE_SEQUENCE' for I/O 'many'"):
        parts["signature"].read_signature(session(ROWS, sequence=True))


def control(**fields: Any) -> dict[str, Any]:
    return {"control_input": [{"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", **fields}]}]}


@pytest.mark.parametrize(
    ("start", "batching", "words"),
    [
        pytest.param(
            [], control(int32_false_true=[0, 1]), "sequence control 'start' in model has dims []", id="dims"
        ),
        pytest.param(
            [1], control(fp32_false_true=[0, 1]), "expects data-type INT32 but the model", id="type"
        ),
        pytest.param([1], {"state": [{"input_name": "s"}]}, "implicit state", id="state"),
    ],
)
def test_sequence_batching_is_checked(parts: Modules, start: list[int], batching: Any, words: str) -> None:
    made = session({**ROWS, "start": (TensorProto.INT32, ["n", *start])})
    given = config(
        max_batch_size=2, input=[tensor("x", [3])], output=[tensor("y_x", [3])], sequence_batching=batching
    )
    with pytest.raises(parts["signature"].ConfigError) as caught:
        check(parts, given, made)
    assert words in str(caught.value)


def settings(**values: str) -> dict[str, Any]:
    return config(
        parameters={key.replace("__", "."): {"string_value": value} for key, value in values.items()}
    )


def test_settings_reach_the_session(parts: Modules) -> None:
    given = settings(
        intra_op_thread_count="3", execution_mode="1", enable_mem_arena="OFF", enable_mem_pattern="0"
    )
    given["optimization"] = {"graph": {"level": -1}}
    options = parts["session"].session_options(given)
    assert options.intra_op_num_threads == 3
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC


def test_without_settings_onnx_runtime_chooses(parts: Modules) -> None:
    options = parts["session"].session_options(config())
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (0, 0)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert parts["session"].run_options(config()) is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("execution_mode", "2", "Expected values for  execution_mode are 0 or 1 but got 2 ."),
        ("intra_op_thread_count", "many", "failed to convert 'many' to integral number"),
        ("enable_mem_arena", "maybe", "failed to convert 'maybe' to boolean"),
        ("share_session_between_instances", "2", "failed to convert '2' to boolean"),
    ],
)
def test_a_bad_setting_is_refused(parts: Modules, key: str, value: str, words: str) -> None:
    with pytest.raises(parts["signature"].ConfigError) as caught:
        parts["session"].session_options(settings(**{key: value}))
    assert str(caught.value).endswith(words)


def test_only_the_cpus_arena_is_shrunk(parts: Modules) -> None:
    options = parts["session"].run_options(settings(memory__enable_memory_arena_shrinkage="gpu:0;cpu:0"))
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_an_unknown_accelerator_is_refused(parts: Modules) -> None:
    given = config(
        optimization={"execution_accelerators": {"cpu_execution_accelerator": [{"name": "magic"}]}}
    )
    with pytest.raises(
        parts["signature"].ConfigError, match="unknown Execution Accelerator 'magic' is requested"
    ):
        parts["session"].ignored_settings(given)


def test_accelerators_that_are_not_here_are_noted(parts: Modules) -> None:
    accelerators = {
        "cpu_execution_accelerator": [{"name": "openvino"}],
        "gpu_execution_accelerator": [{"name": "tensorrt"}],
    }
    notes = parts["session"].ignored_settings(config(optimization={"execution_accelerators": accelerators}))
    assert [("tensorrt" in note, "openvino" in note) for note in notes] == [(True, False), (False, True)]


@pytest.fixture
def plan(parts: Modules) -> Callable[..., Any]:
    def make(*, max_batch_size: int = 8) -> Any:
        given = config(max_batch_size=max_batch_size, output=[tensor("y_x", [3])])
        return parts["batch"].BatchPlan(given, parts["signature"].read_signature(session(ROWS)))

    return make


def rows(count: int, width: int = 3) -> np.ndarray[Any, Any]:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def test_one_request_is_not_copied(plan: Callable[..., Any]) -> None:
    made, array = plan(), rows(2)
    (group,) = made.groups([made.member(0, {"x": array}, ["y_x"])])
    assert made.feeds(group)["x"] is array


def test_outputs_are_split_as_views(plan: Callable[..., Any]) -> None:
    made = plan()
    members = [made.member(index, {"x": rows(size)}, ["y_x"]) for index, size in enumerate((2, 1, 3))]
    (group,) = made.groups(members)
    joined = made.feeds(group)["x"]
    parts_of = [result["y_x"] for result in made.split(group, {"y_x": joined})]
    assert [part.shape[0] for part in parts_of] == [2, 1, 3]
    assert all(np.shares_memory(part, joined) for part in parts_of)
    np.testing.assert_array_equal(parts_of[2], rows(3))


def test_requests_of_other_shapes_run_apart(plan: Callable[..., Any]) -> None:
    made = plan()
    members = [made.member(index, {"x": rows(1, width)}, ["y_x"]) for index, width in enumerate((3, 4, 3))]
    assert [[member.index for member in group] for group in made.groups(members)] == [[0, 2], [1]]


def test_without_a_batch_dimension_each_request_runs_alone(plan: Callable[..., Any]) -> None:
    made = plan(max_batch_size=0)
    members = [made.member(index, {"x": rows(2)}, ["y_x"]) for index in range(2)]
    assert [[member.index for member in group] for group in made.groups(members)] == [[0], [1]]


def test_only_the_outputs_that_are_wanted_are_fetched(plan: Callable[..., Any]) -> None:
    made = plan()
    members = [made.member(0, {"x": rows(1)}, ["b"]), made.member(1, {"x": rows(1)}, ["a", "b"])]
    assert made.wanted(members) == ["b", "a"]


RAGGED = config(
    max_batch_size=8,
    input=[tensor("x", [-1], allow_ragged_batch=True)],
    output=[tensor("y_x", [-1])],
    batch_output=[{"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["y_x"], "source_input": ["x"]}],
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [2, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [2, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 2, 8]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 6),
        ("BATCH_ITEM_SHAPE", [[2], [3], [3]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [2, 3, 3]),
    ],
)
def test_ragged_requests_come_with_what_tells_them_apart(
    parts: Modules, kind: str, expected: list[Any]
) -> None:
    made = {"kind": kind, "target_name": ["made"], "data_type": "TYPE_INT32", "source_input": ["x"]}
    signature = parts["signature"].read_signature(session({"x": (TensorProto.FLOAT, ["n"])}))
    plan = parts["batch"].BatchPlan({**RAGGED, "batch_input": [made]}, signature)
    members = [plan.member(0, {"x": rows(1, 2)}, ["y_x"]), plan.member(1, {"x": rows(2, 3)}, ["y_x"])]
    (group,) = plan.groups(members)
    feeds = plan.feeds(group)
    assert feeds["x"].tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    assert feeds["made"].dtype == np.int32
    assert feeds["made"].tolist() == expected


def test_a_ragged_output_is_cut_by_the_inputs_shapes(parts: Modules) -> None:
    signature = parts["signature"].read_signature(session({"x": (TensorProto.FLOAT, ["n"])}))
    plan = parts["batch"].BatchPlan(RAGGED, signature)
    members = [plan.member(index, {"x": rows(1, width)}, ["y_x"]) for index, width in enumerate((2, 3))]
    first, second = plan.split(members, {"y_x": np.arange(5.0)})
    assert first["y_x"].tolist() == [[0, 1]]
    assert second["y_x"].tolist() == [[2, 3, 4]]
    with pytest.raises(ValueError, match="output 'y_x' has 4 elements, and the requests need 5 or more"):
        plan.split(members, {"y_x": np.arange(4.0)})
