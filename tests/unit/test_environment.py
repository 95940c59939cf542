"""What ``tt env`` finds: versions from metadata, GPUs asked for safely."""

from __future__ import annotations

import json
import os
import stat
import sys
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit import _machine, environment
from triton_toolkit._optional import EXTRAS
from triton_toolkit.environment import look_around, satisfies


@pytest.fixture(scope="module")
def found():
    return look_around()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a program with this text alone on PATH."""

    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))

    monkeypatch.setenv("PATH", str(tmp_path))
    return put


def test_it_is_json(found):
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["python"] == found.python


def test_versions_are_those_of_the_packages(found):
    packages = {package.name: package for extra in found.extras for package in extra.packages}
    assert packages["numpy"].version == metadata.version("numpy")
    assert packages["numpy"].wanted == ">=1.26"


def test_every_extra_is_there_after_the_base(found):
    assert [extra.name for extra in found.extras] == ["base", *EXTRAS]


def test_extras_that_are_not_for_users_are_left_out():
    provided = set(metadata.metadata("triton-toolkit").get_all("Provides-Extra") or ())
    assert set(EXTRAS) <= provided
    assert provided - set(EXTRAS) == {"dev", "examples"}


def test_an_extra_with_all_its_packages_is_complete(found):
    extras = {extra.name: extra for extra in found.extras}
    assert extras["base"].complete
    assert extras["torch"].complete == all(package.fits for package in extras["torch"].packages)
    assert extras["torch"].install == "pip install 'triton-toolkit[torch]'"


def test_a_missing_package_makes_an_extra_incomplete(monkeypatch):
    versions = {"onnxscript": "0.7.2"}
    monkeypatch.setattr(environment, "_version", versions.get)
    torch = next(extra for extra in environment._extras() if extra.name == "torch")
    assert not torch.complete
    assert {package.name: package.fits for package in torch.packages} == {"torch": False, "onnxscript": True}


def test_an_old_package_is_present_but_does_not_fit(monkeypatch):
    monkeypatch.setattr(environment, "_version", {"onnxruntime": "1.10.0"}.get)
    cpu = next(extra for extra in environment._extras() if extra.name == "cpu")
    assert [(p.version, p.fits) for p in cpu.packages] == [("1.10.0", False)]


def test_the_gpu_build_of_onnxruntime_serves_the_cpu_extra(monkeypatch):
    monkeypatch.setattr(environment, "_version", {"onnxruntime-gpu": "1.20.0"}.get)
    cpu = next(extra for extra in environment._extras() if extra.name == "cpu")
    assert cpu.complete
    assert [package.name for package in cpu.packages] == ["onnxruntime-gpu"]


@pytest.mark.parametrize(
    ("versions", "warning"),
    [
        ({"onnxruntime": "1.20.0", "onnxruntime-gpu": "1.20.0"}, "write the same files"),
        ({"numpy": "2.1.0", "nvidia-pytriton": "0.7.0"}, "needs numpy<2"),
    ],
)
def test_packages_that_do_not_go_together_are_warned_of(monkeypatch, versions, warning):
    monkeypatch.setattr(environment, "_version", versions.get)
    (text,) = environment._warnings()
    assert warning in text


def test_packages_that_go_together_are_not_warned_of(monkeypatch):
    monkeypatch.setattr(environment, "_version", {"numpy": "1.26.4", "nvidia-pytriton": "0.7.0"}.get)
    assert list(environment._warnings()) == []


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.6", True), ("2.5.1", ">=2.6", False), ("2.6", ">=2.6.0", True),
        ("10.0", ">=9.1", True),
        ("0.7.0", "==0.7.0", True), ("0.7", "==0.7.0", True), ("0.7.1", "==0.7.0", False),
        ("1.26.4", "<2", True), ("2.0.0", "<2", False), ("1.5", ">=1,<2", True), ("2.1", ">=1,<2", False),
        ("1.0rc1", ">=1.0", True), ("1.0", "", True),
    ],
)  # fmt: skip
def test_satisfies(version, wanted, fits):
    assert satisfies(version, wanted) == fits


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4)
)
def test_satisfies_agrees_with_packaging(have, want):
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    version, condition = ".".join(map(str, have)), ">=" + ".".join(map(str, want))
    assert satisfies(version, condition) == SpecifierSet(condition).contains(Version(version))


def test_this_machine_is_described(found):
    host = found.host
    assert host.cpus == len(os.sched_getaffinity(0))
    assert host.memory_bytes is None or host.memory_bytes > 2**28
    assert host.machine in ("x86_64", "aarch64")


def test_nvidia_smi_is_read(program):
    program("nvidia-smi", "print('0, NVIDIA H100 80GB HBM3, 560.35.03, 81559, 9.0')")
    gpus = _machine.find_gpus()
    assert (gpus.present, gpus.evidence) == (True, "nvidia-smi")
    assert gpus.found == (
        _machine.Gpu(
            index="0",
            name="NVIDIA H100 80GB HBM3",
            driver="560.35.03",
            memory_mib="81559",
            compute_capability="9.0",
        ),
    )


def test_nvidia_smi_that_fails_is_quoted(program):
    program(
        "nvidia-smi",
        "print('NVIDIA-SMI has failed because it could not talk to the driver'); raise SystemExit(9)",
    )
    gpus = _machine.find_gpus()
    assert not gpus.present
    assert gpus.evidence == (
        "nvidia-smi is installed and says: NVIDIA-SMI has failed because it could not talk to the driver"
    )


def test_nvidia_smi_that_hangs_costs_a_limited_time(program, monkeypatch):
    monkeypatch.setattr(_machine, "_GPU_TIMEOUT_S", 0.2)
    program("nvidia-smi", "import time; time.sleep(60)")
    gpus = _machine.find_gpus()
    assert gpus.evidence == "nvidia-smi is installed and says: nvidia-smi: TimeoutExpired"


@pytest.mark.parametrize("text", ["import os; os.abort()", "", "print('nonsense')"])
def test_nvidia_smi_that_crashes_or_says_nothing_is_no_gpu(program, text):
    program("nvidia-smi", text)
    assert not _machine.find_gpus().present


@pytest.mark.parametrize(
    ("output", "present", "evidence"),
    [
        ("0 2 12060", True, "libcuda.so.1 for CUDA 12.6"),
        ("0 0 12060", False, "libcuda.so.1 for CUDA 12.6 finds no device (cuInit: 0)"),
        ("100 0 13000", False, "libcuda.so.1 for CUDA 13.0 finds no device (cuInit: 100)"),
        ("OSError", False, "neither nvidia-smi nor libcuda.so.1 is installed"),
    ],
)
def test_without_nvidia_smi_the_driver_library_is_asked(program, monkeypatch, output, present, evidence):
    monkeypatch.setattr(_machine, "_CUDA_PROBE", f"print({output!r})")
    gpus = _machine.find_gpus()
    assert (gpus.present, gpus.evidence, len(gpus.found)) == (present, evidence, 2 if present else 0)


def test_the_probe_of_the_driver_library_ends_quietly_without_one(program):
    assert _machine.find_gpus().present in (True, False)


@pytest.mark.server
def test_the_embedded_server_is_really_started(found):
    checked = look_around(start_server=True).embedded
    assert (checked.available, checked.checked, checked.version) == (True, True, found.embedded.version)


def test_where_the_embedded_server_cannot_run_the_reason_is_given(monkeypatch):
    from triton_toolkit.errors import MissingDependencyError
    from triton_toolkit.server import embedded

    def missing() -> None:
        raise MissingDependencyError("nvidia-pytriton is not installed", hint="pip install it")

    monkeypatch.setattr(embedded, "check_available", missing)
    found = environment.look_around().embedded
    assert (found.available, found.reason, found.hint) == (
        False,
        "nvidia-pytriton is not installed",
        "pip install it",
    )
