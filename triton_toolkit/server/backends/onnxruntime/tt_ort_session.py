"""From a model's config to an ONNX Runtime session: the file, and the options in ``parameters``.

The keys, their values and the refusals are the C++ ONNX Runtime backend's. What only means something on
a GPU, or only to a process that holds all instances, is noted in the log and does nothing here.

Source: triton-inference-server/onnxruntime_backend, onnxruntime.cc (ModelState, LoadModel), and
triton-inference-server/backend, backend_common.cc (ParseBoolValue, ParseIntValue).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnxruntime as ort  # noqa: TID253 - runs in the server's stub process, which needs it at once

if TYPE_CHECKING:
    from triton_toolkit.server.backends.onnxruntime.tt_ort_signature import ConfigError
else:  # the stub imports model.py and its neighbours by their bare names
    from tt_ort_signature import ConfigError

_DEFAULT_FILE = "model.onnx"
_GPU_PARAMETERS = (
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
_INTEGER = re.compile(r"\s*([+-]?\d+)")
_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


def model_path(config: Mapping[str, Any], version_folder: str) -> str:
    """Return the model's file: the config's name or ``model.onnx``, itself or inside a folder of that name.

    Raises:
        ConfigError: There is none.
    """
    path = os.path.join(version_folder, config.get("default_model_filename") or _DEFAULT_FILE)
    if os.path.isdir(path):
        path = os.path.join(path, _DEFAULT_FILE)
    if not os.path.exists(path):
        raise ConfigError(f"unable to find '{path}' for model instance '{config['name']}'")
    return path


def create_session(config: Mapping[str, Any], path: str, note: Callable[[str], None]) -> ort.InferenceSession:
    """Create the session of one instance.

    Args:
        config: The model's config, as Triton gives it to Python.
        path: The ONNX file.
        note: Told about settings that do nothing here.

    Raises:
        ConfigError: A setting has a bad value, or ONNX Runtime refuses the model.
    """
    options = session_options(config)
    for text in ignored_settings(config):
        note(text)
    try:
        for library in config.get("model_operations", {}).get("op_library_filename", []):
            options.register_custom_ops_library(library)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base
        raise ConfigError(ort_message(exc)) from None


def session_options(config: Mapping[str, Any]) -> ort.SessionOptions:
    """Return the options that ``optimization.graph`` and ``parameters`` ask for.

    No thread count means ONNX Runtime's own choice, one thread a physical core, as in the C++ backend.
    Other than there, idle threads do not spin: here the server, its clients and the processes of all
    instances share the cores, and threads that spin take them from each other.

    Raises:
        ConfigError: A value cannot be used.
    """
    options = ort.SessionOptions()
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    options.graph_optimization_level = _optimization_level(config)
    options.execution_mode = _execution_mode(config)
    intra, inter = (_integer(config, f"{kind}_op_thread_count") for kind in ("intra", "inter"))
    if intra > 0:
        options.intra_op_num_threads = intra
    if inter > 0:
        options.inter_op_num_threads = inter
    _boolean(config, "share_session_between_instances")
    arena, pattern = (_boolean(config, f"enable_mem_{kind}") for kind in ("arena", "pattern"))
    if arena is not None:
        options.enable_cpu_mem_arena = arena
    if pattern is not None:
        options.enable_mem_pattern = pattern
    allocator = _parameter(config, _DEVICE_ALLOCATOR)
    if allocator is not None:
        options.add_session_config_entry(_DEVICE_ALLOCATOR, allocator)
    return options


def run_options(config: Mapping[str, Any]) -> ort.RunOptions | None:
    """Return the options of each run, None for ONNX Runtime's defaults."""
    devices = (_parameter(config, _SHRINKAGE) or "").split(";")
    on_cpu = ";".join(device for device in devices if device.startswith("cpu"))
    if not on_cpu:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(_SHRINKAGE, on_cpu)
    return options


def ignored_settings(config: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that does nothing on this server.

    Raises:
        ConfigError: An accelerator for the CPU is unknown to the C++ backend too.
    """
    notes = [
        f"parameters.{key} is a GPU setting; it does nothing on this CPU"
        for key in _GPU_PARAMETERS
        if _parameter(config, key) is not None
    ]
    if _boolean(config, "share_session_between_instances"):
        notes.append(
            "parameters.share_session_between_instances does nothing here: each instance is its own process"
        )
    optimization = config.get("optimization", {})
    if optimization.get("cuda"):
        notes.append("optimization.cuda is a GPU setting; it does nothing on this CPU")
    accelerators = optimization.get("execution_accelerators", {})
    for accelerator in accelerators.get("gpu_execution_accelerator", []):
        notes.append(f"the GPU execution accelerator '{accelerator['name']}' does nothing on this CPU")
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        if accelerator["name"] != "openvino":
            raise ConfigError(f"unknown Execution Accelerator '{accelerator['name']}' is requested")
        notes.append("the CPU execution accelerator 'openvino' is not available here; the CPU provider runs")
    return notes


def ort_message(exc: Exception) -> str:
    """Return an ONNX Runtime failure in the words of the C++ backend."""
    match = _ORT_ERROR.match(str(exc))
    return f"onnx runtime error {match[1]}: {match[2].strip()}" if match else f"onnx runtime error: {exc}"


def _optimization_level(config: Mapping[str, Any]) -> ort.GraphOptimizationLevel:
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    levels = {
        -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    }
    return levels.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def _execution_mode(config: Mapping[str, Any]) -> ort.ExecutionMode:
    mode = _integer(config, "execution_mode")
    if mode not in (0, 1):
        raise ConfigError(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got "
            f"{mode} ."
        )
    return ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL


def _parameter(config: Mapping[str, Any], key: str) -> str | None:
    entry = config.get("parameters", {}).get(key)
    return None if entry is None else str(entry.get("string_value", ""))


def _integer(config: Mapping[str, Any], key: str) -> int:
    value = _parameter(config, key)
    if value is None:
        return 0
    match = _INTEGER.match(value)
    if match is None:
        raise ConfigError(f"failed to convert '{value}' to integral number")
    return int(match[1])


def _boolean(config: Mapping[str, Any], key: str) -> bool | None:
    value = _parameter(config, key)
    if value is None:
        return None
    known = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    if value.lower() not in known:
        raise ConfigError(f"failed to convert '{value}' to boolean")
    return known[value.lower()]
