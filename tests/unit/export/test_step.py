from dataclasses import replace
from pathlib import Path

import pytest

from triton_toolkit.export.step import Step, _environment

STEP = Step(root=Path(), model="m", stage="export", module="m", job="{}")


@pytest.fixture(params=[None, "/usr/bin/python3"], ids=["our-interpreter", "its-own"])
def environment(request, tmp_path):
    return lambda: _environment(replace(STEP, python=request.param), tmp_path)


def test_a_step_sees_no_gpu_and_one_hash_seed(environment, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    given = environment()
    assert (given["CUDA_VISIBLE_DEVICES"], given["PYTHONHASHSEED"]) == ("", "0")


def test_a_steps_temporary_files_lie_in_its_folder(environment, tmp_path):
    assert environment()["TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_WAIT_POLICY", "PASSIVE"),
        ("ORT_DISABLE_TELEMETRY", "1"),
        ("MALLOC_TRIM_THRESHOLD_", "4294967296"),
    ],
)
def test_a_steps_defaults_hold_unless_the_user_says_otherwise(environment, monkeypatch, name, value):
    monkeypatch.delenv(name, raising=False)
    assert environment()[name] == value
    monkeypatch.setenv(name, "mine")
    assert environment()[name] == "mine"
