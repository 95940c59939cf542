"""What an ONNX model takes and gives, and whether a ``config.pbtxt`` agrees with it.

Both directions follow the C++ ONNX Runtime backend: what it fills in where the config lists nothing,
and what it refuses, in its words, so that a repository gets the same verdict here and in production.

Source: triton-inference-server/onnxruntime_backend, onnxruntime.cc (AutoCompleteConfig, ValidateInputs,
ValidateOutputs, Validate*SequenceControl) and onnxruntime_utils.cc (CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_MAX_BATCH_SIZE = 4
"""What Triton gives every backend as ``default-max-batch-size``."""

_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
_CONTAINERS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
    "opaque": "ONNX_TYPE_OPAQUE",
}


class ConfigError(Exception):
    """The config and the model do not fit, or the config asks for what this backend has not."""


@dataclass(frozen=True)
class Tensor:
    """An input, output or overridable initializer of the model."""

    name: str
    data_type: str
    """Triton's name, ``TYPE_INVALID`` for a type that Triton's backend does not serve."""
    shape: tuple[int, ...]
    """With -1 for a dynamic dimension; () for a scalar."""

    @property
    def batchable(self) -> bool:
        """Whether its first dimension is dynamic, so that it can be Triton's batch dimension."""
        return bool(self.shape) and self.shape[0] == -1


@dataclass(frozen=True)
class Signature:
    """All that a session tells about its model's tensors."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    initializers: dict[str, Tensor]
    """Initializers that a request may override: optional inputs, to Triton."""

    @property
    def batchable(self) -> bool:
        """Whether every input and output has a dynamic first dimension."""
        return all(tensor.batchable for tensor in (*self.inputs.values(), *self.outputs.values()))


def read_signature(session: Any) -> Signature:
    """Read the signature of an ``onnxruntime.InferenceSession``.

    Raises:
        ConfigError: An input or output is not a tensor (a sequence, a map …).
    """
    return Signature(
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        initializers=_tensors(session.get_overridable_initializers()),
    )


def _tensors(nodes: Iterable[Any]) -> dict[str, Tensor]:
    tensors = {}
    for node in nodes:
        container = _CONTAINERS.get(node.type.partition("(")[0])
        if container:
            raise ConfigError(
                f"Unsupported ONNX Type '{container}' for I/O '{node.name}', expected 'ONNX_TYPE_TENSOR'."
            )
        shape = tuple(extent if isinstance(extent, int) else -1 for extent in node.shape)
        tensors[node.name] = Tensor(node.name, _TYPES.get(node.type, "TYPE_INVALID"), shape)
    return tensors


# --- Filling in what the config does not say


def needs_completion(config: Mapping[str, Any]) -> bool:
    """Return whether inputs or outputs are missing; nothing else starts the C++ backend's completion."""
    return not ((config["input"] or config["batch_input"]) and config["output"])


def completed_max_batch_size(config: Mapping[str, Any], signature: Signature) -> int:
    """Return the ``max_batch_size`` to serve with.

    Raises:
        ConfigError: The config wants batches and the model cannot have them.
    """
    configured = int(config["max_batch_size"])
    if signature.batchable:
        return configured or DEFAULT_MAX_BATCH_SIZE
    if configured:
        raise ConfigError(
            f"autofill failed for model '{config['name']}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    return 0


def described(tensors: Iterable[Tensor], *, batched: bool) -> list[dict[str, Any]]:
    """Return inputs or outputs as ``ModelInput`` / ``ModelOutput`` entries.

    ``dims`` must not be empty, so a tensor without dimensions of its own becomes [1]; with batching the
    reshape tells the server that the model does not see that 1. Without batching an empty reshape is not
    allowed, and the backend drops the 1 itself.
    """
    entries = []
    for tensor in tensors:
        dims = list(tensor.shape[1:] if batched else tensor.shape)
        entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]}
        if batched and not dims:
            entry["reshape"] = {"shape": []}
        entries.append(entry)
    return entries


# --- Checking what the config says


def check(config: Mapping[str, Any], signature: Signature) -> None:
    """Compare a complete config with the model.

    Raises:
        ConfigError: They differ; the text is the C++ backend's.
    """
    controls = _checked_controls(config, signature)
    wanted = sum(not entry.get("optional", False) for entry in config["input"])
    wanted += len(config["batch_input"]) + controls
    if wanted != len(signature.inputs):
        raise ConfigError(
            f"unable to load model '{config['name']}', configuration expects {wanted} inputs, "
            f"model provides {len(signature.inputs)}"
        )
    inputs = signature.inputs | signature.initializers
    for entry in config["input"]:
        _check_known(entry["name"], inputs, "input")
        _check_optional(config, entry)
        _check_entry(config, entry, inputs[entry["name"]], "input")
    scattered = {name for entry in config["batch_output"] for name in entry["target_name"]}
    for entry in config["output"]:
        _check_known(entry["name"], signature.outputs, "output")
        _check_entry(
            config, entry, signature.outputs[entry["name"]], "output", shape=entry["name"] not in scattered
        )


def _check_known(name: str, tensors: Mapping[str, Tensor], kind: str) -> None:
    if name not in tensors:
        raise ConfigError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(tensors))}"
        )


def _check_optional(config: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    if entry.get("optional", False) and config["max_batch_size"] > 0:
        raise ConfigError(
            f"unable to load model '{config['name']}', optional input '{entry['name']}' is not supported for "
            "models that support batching"
        )


def _check_entry(
    config: Mapping[str, Any], entry: Mapping[str, Any], tensor: Tensor, kind: str, *, shape: bool = True
) -> None:
    name, data_type = entry["name"], entry["data_type"]
    if data_type not in _TYPES.values():
        raise ConfigError(
            f"unsupported datatype {data_type} for {kind} '{name}' for model '{config['name']}'"
        )
    if data_type != tensor.data_type:
        raise ConfigError(
            f"unable to load model '{config['name']}', configuration expects datatype {data_type} for {kind} "
            f"'{name}', model provides {tensor.data_type}"
        )
    dims = configured_dims(entry)
    if entry.get("allow_ragged_batch", False):
        _check_ragged(config, entry, tensor)
    elif shape and tensor.shape:
        _check_dims(config, tensor, dims, exact=kind == "output")
    elif shape and any(extent != 1 for extent in dims):
        raise ConfigError(
            f"unable to load model '{config['name']}', scalar tensor '{name}', should only provide 1 in the "
            "model configuration when the model doesn't support batching. Model configuration provided: "
            f"{_text(dims)}."
        )


def configured_dims(entry: Mapping[str, Any]) -> list[int]:
    """Return the shape that the model is to see: the reshape where there is one, else ``dims``."""
    reshape = entry.get("reshape")
    return [int(extent) for extent in (entry["dims"] if reshape is None else reshape.get("shape", []))]


def _check_ragged(config: Mapping[str, Any], entry: Mapping[str, Any], tensor: Tensor) -> None:
    start = (
        f"unable to load model '{config['name']}', configuration expects model provides input with shape "
        f"[-1] for ragged input '{entry['name']}'"
    )
    if entry.get("optional", False):
        raise ConfigError(f"{start}, which is not supported for optional input")
    if tensor.shape != (-1,):
        raise ConfigError(f"{start}, model provides {_text(tensor.shape)}")


def _check_dims(config: Mapping[str, Any], tensor: Tensor, dims: Sequence[int], *, exact: bool) -> None:
    """Compare shapes: an output's exactly; an input's dynamic dimensions may be fixed by the config."""
    batched = config["max_batch_size"] > 0
    start = f"model '{config['name']}', tensor '{tensor.name}': "
    if batched and not tensor.batchable:
        raise ConfigError(
            f"{start}for the model to support batching the shape should have at least 1 dimension and the "
            f"first dimension must be -1; but shape expected by the model is {_text(tensor.shape)}"
        )
    full = [-1, *dims] if batched else list(dims)
    fits = len(full) == len(tensor.shape) and all(
        wanted == given or (wanted == -1 and not exact)
        for wanted, given in zip(tensor.shape, full, strict=True)
    )
    if fits:
        return
    explained = (
        f"{len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
        f"explicit tensor shape, making complete shape {_text(full)})"
        if batched
        else f"{len(full)} dimensions (shape {_text(full)})"
    )
    raise ConfigError(
        f"{start}the model expects {len(tensor.shape)} dimensions (shape {_text(tensor.shape)}) but the "
        f"model configuration specifies {explained}"
    )


def _checked_controls(config: Mapping[str, Any], signature: Signature) -> int:
    """Check the sequence batcher's control tensors; return how many inputs of the model they are."""
    sequence = config.get("sequence_batching")
    if not sequence:
        return 0
    if sequence.get("state"):
        raise ConfigError(
            f"model '{config['name']}': sequence_batching.state (implicit state) cannot be served here: "
            "Triton gives no states to Python-based backends; the C++ backend of a Triton container serves it"
        )
    controls = {
        entry["name"]: control
        for entry in sequence.get("control_input", [])
        for control in entry.get("control", [])
    }
    for name, control in controls.items():
        _check_control(config, name, control, signature)
    return len(controls)


def _check_control(
    config: Mapping[str, Any], name: str, control: Mapping[str, Any], signature: Signature
) -> None:
    tensor = signature.inputs.get(name)
    if tensor is None:
        raise ConfigError(
            f"configuration specified sequence control '{name}', but model does not provide that input"
        )
    start = f"unable to load model '{config['name']}', sequence control '{name}'"
    dims = tensor.shape[1:] if config["max_batch_size"] > 0 else tensor.shape
    if tuple(dims) != (1,):
        raise ConfigError(f"{start} in model has dims {_text(dims)} but dims [1] is expected")
    data_type = _control_type(control)
    if data_type != tensor.data_type:
        raise ConfigError(
            f"{start}, the model expects data-type {tensor.data_type.removeprefix('TYPE_')} but the model "
            f"configuration specifies data-type {data_type}"
        )


def _control_type(control: Mapping[str, Any]) -> str:
    for key, data_type in (
        ("int32_false_true", "TYPE_INT32"),
        ("fp32_false_true", "TYPE_FP32"),
        ("bool_false_true", "TYPE_BOOL"),
    ):
        if control.get(key):
            return data_type
    return str(control.get("data_type", "TYPE_INVALID"))


def _text(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(extent) for extent in shape) + "]"
