"""What docs/config.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_toolkit.config.fields import fill_message
from triton_toolkit.config.templates import MAIN, shipped_folder

PAGE = (Path(__file__).parents[3] / "docs" / "config.md").read_text(encoding="utf-8")


def test_example_of_serve_is_a_config() -> None:
    [example] = re.findall(r"```yaml\n(serve:.*?)```", PAGE, re.DOTALL)
    values = yaml.safe_load(example)["serve"]
    assert values.pop("warmup") == "auto"
    message = ModelConfig()
    fill_message(message, values)
    assert message.dynamic_batching.max_queue_delay_microseconds == 1000


def test_named_blocks_are_those_of_the_template() -> None:
    [line] = re.findall(r"^- Blocks: (.*)\.$", PAGE, re.MULTILINE)
    text = (shipped_folder() / MAIN).read_text(encoding="utf-8")
    assert re.findall(r"`(\w+)`", line) == re.findall(r"{% block (\w+) %}", text)
