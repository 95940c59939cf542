"""Triton's ``onnxruntime`` backend for CPUs, written for Triton's Python backend.

Triton starts a process (the stub) for each model instance and gives it the requests of one batch at a
time. A model repository with ``backend: "onnxruntime"`` runs on this backend and on the C++ backend of a
Triton container without a change.

Per batch and input there is one concatenation (none for a single request), ONNX Runtime reads that
memory in place, and the outputs of the requests are views of ONNX Runtime's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - runs in the server's stub process, which needs it at once
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from triton_toolkit.server.backends.onnxruntime.tt_ort_batch import BatchPlan
    from triton_toolkit.server.backends.onnxruntime.tt_ort_session import (
        create_session,
        model_path,
        ort_message,
        run_options,
    )
    from triton_toolkit.server.backends.onnxruntime.tt_ort_signature import (
        ConfigError,
        check,
        completed_max_batch_size,
        described,
        needs_completion,
        read_signature,
    )
else:  # the stub imports model.py and its neighbours by their bare names
    from tt_ort_batch import BatchPlan
    from tt_ort_session import create_session, model_path, ort_message, run_options
    from tt_ort_signature import (
        ConfigError,
        check,
        completed_max_batch_size,
        described,
        needs_completion,
        read_signature,
    )

Array = np.ndarray[Any, Any]


class TritonPythonModel:
    """One instance of one ONNX model; the name is the Python backend's."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in batching, inputs and outputs where the config lists none, as the C++ backend does."""
        config = auto_complete_model_config.as_dict()
        if not needs_completion(config):
            return auto_complete_model_config
        try:
            session = create_session(config, model_path(config, str(pb_utils.get_model_dir())), _log)
            signature = read_signature(session)
            max_batch_size = completed_max_batch_size(config, signature)
        except ConfigError as exc:
            raise pb_utils.TritonModelException(str(exc)) from None
        if max_batch_size != config["max_batch_size"]:
            _log(
                f"autofilled max_batch_size to {max_batch_size} for model '{config['name']}' since batching "
                "is supported but no max_batch_size is specified in model configuration"
            )
        auto_complete_model_config.set_max_batch_size(max_batch_size)
        if max_batch_size > 1 and "sequence_batching" not in config:
            auto_complete_model_config.set_dynamic_batching()
        # add_input() takes no reshape, which a tensor without dimensions of its own needs.
        if not config["input"] and not config["batch_input"]:
            config["input"].extend(described(signature.inputs.values(), batched=max_batch_size > 0))
        if not config["output"]:
            config["output"].extend(described(signature.outputs.values(), batched=max_batch_size > 0))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and compare it with its config."""
        config = json.loads(args["model_config"])
        version_folder = os.path.join(args["model_repository"], args["model_version"])
        try:
            self._session = create_session(config, model_path(config, version_folder), _log)
            signature = read_signature(self._session)
            check(config, signature)
        except ConfigError as exc:
            raise pb_utils.TritonModelException(str(exc)) from None
        self._run_options = run_options(config)
        self._plan = BatchPlan(config, signature)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request of a batch; a request's error is its own."""
        responses: list[Any] = [None] * len(requests)
        members = []
        for index, request in enumerate(requests):
            try:
                inputs = {tensor.name(): self._plan.request_input(tensor) for tensor in request.inputs()}
            except ValueError as exc:
                responses[index] = _refused(str(exc), pb_utils.TritonError.INVALID_ARG)
                continue
            members.append(self._plan.member(index, inputs, request.requested_output_names()))
        for group in self._plan.groups(members):
            self._answer(group, responses)
        return responses

    def _answer(self, group: Sequence[Any], responses: list[Any]) -> None:
        """Run requests together; where that fails, one by one, so that only the culprit fails."""
        try:
            outputs = self._run(group)
        except Exception as exc:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base
            if len(group) > 1:
                for member in group:
                    self._answer([member], responses)
            else:
                responses[group[0].index] = _refused(ort_message(exc), pb_utils.TritonError.INTERNAL)
            return
        try:
            results = self._plan.split(group, outputs)
        except ValueError as exc:
            for member in group:
                responses[member.index] = _refused(str(exc), pb_utils.TritonError.UNSUPPORTED)
            return
        for member, result in zip(group, results, strict=True):
            tensors = [pb_utils.Tensor(name, array) for name, array in result.items()]
            responses[member.index] = pb_utils.InferenceResponse(tensors)

    def _run(self, group: Sequence[Any]) -> dict[str, Array]:
        names = self._plan.wanted(group)
        arrays = self._session.run(names, self._plan.feeds(group), self._run_options)
        return dict(zip(names, arrays, strict=True))


def _refused(text: str, code: int) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(text, code))


def _log(text: str) -> None:
    pb_utils.Logger.log_info(text)
