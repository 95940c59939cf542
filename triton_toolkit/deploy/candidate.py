"""Names and configs of candidates: a new version as a model that no client knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triton_toolkit.config.message import format_config
from triton_toolkit.deploy.store import CANDIDATE_PREFIX

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def candidate_name(deployment: str, model: str) -> str:
    """Return the name under which a deployment tries a model."""
    return f"{CANDIDATE_PREFIX}{deployment}-{model}"


def candidate_config(config: ModelConfig, names: Mapping[str, str]) -> ModelConfig:
    """Return the config under the candidate's name, an ensemble's steps led to their candidates.

    Args:
        config: The model's own config.
        names: Model -> candidate, for all models that are published together. Steps that are not
            among them keep the model that is served.
    """
    renamed = type(config)()
    renamed.CopyFrom(config)
    renamed.name = names[config.name]
    for step in renamed.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, step.model_name)
    return renamed


def candidate_text(config: ModelConfig, names: Mapping[str, str]) -> str:
    """Return the candidate's ``config.pbtxt``."""
    return format_config(candidate_config(config, names))
