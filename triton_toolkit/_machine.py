"""The machine itself: system, processor, memory, GPUs. Nothing of CUDA is loaded into this process."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_tile", "f16c")
_GPU_TIMEOUT_S = 10.0
_GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "compute_cap")
_CUDA_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, version = ctypes.c_int(), ctypes.c_int()
code = cuda.cuInit(0)
cuda.cuDriverGetVersion(ctypes.byref(version))
if code == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
print(code, count.value, version.value)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine. ``cpus`` are those that this process may use, ``cpu_quota`` what cgroups allow."""

    os: str
    machine: str
    libc: str
    cpu: str
    cpus: int
    cpu_quota: float | None
    cpu_flags: tuple[str, ...]
    memory_bytes: int | None
    shared_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU; memory in MiB, as nvidia-smi gives it."""

    index: str
    name: str
    driver: str
    memory_mib: str
    compute_capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs, and how that is known: what was asked and what it said."""

    present: bool
    found: tuple[Gpu, ...]
    evidence: str


def find_gpus() -> Gpus:
    """Find NVIDIA GPUs without loading anything of CUDA into this process.

    ``nvidia-smi`` is asked first; without it, a child process asks the driver library. A driver
    that hangs or crashes costs the child, and ten seconds at most.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return _ask_driver()
    query = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    code, output = _run(query)
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    found = tuple(
        Gpu(index=i, name=n, driver=d, memory_mib=m, compute_capability=c)
        for i, n, d, m, c in (row for row in rows if len(row) == len(_GPU_FIELDS))
    )
    if code == 0 and found:
        return Gpus(present=True, found=found, evidence="nvidia-smi")
    said = (output.strip().splitlines() or ["nothing"])[0]
    return Gpus(present=False, found=(), evidence=f"nvidia-smi is installed and says: {said}")


def _ask_driver() -> Gpus:
    code, output = _run([sys.executable, "-I", "-c", _CUDA_PROBE])
    numbers = output.split()
    if code != 0 or len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return Gpus(present=False, found=(), evidence="neither nvidia-smi nor libcuda.so.1 is installed")
    error, count, version = map(int, numbers)
    evidence = f"libcuda.so.1 for CUDA {version // 1000}.{version % 1000 // 10}"
    if error or not count:
        return Gpus(present=False, found=(), evidence=f"{evidence} finds no device (cuInit: {error})")
    unknown = {
        "name": "unknown",
        "driver": "unknown",
        "memory_mib": "unknown",
        "compute_capability": "unknown",
    }
    return Gpus(
        present=True, found=tuple(Gpu(index=str(i), **unknown) for i in range(count)), evidence=evidence
    )


def _run(argv: list[str]) -> tuple[int, str]:
    """Return exit code and output; -1 when it cannot be run or takes too long."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_GPU_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return -1, f"{Path(argv[0]).name}: {exc.__class__.__name__}"
    return done.returncode, done.stdout or done.stderr


def look_at_host() -> Host:
    """Return what this process has of the machine; None or "unknown" where it does not say."""
    libc, libc_version = platform.libc_ver()
    flags = set(_cpuinfo("flags").split())
    return Host(
        os=_os_name(),
        machine=platform.machine(),
        libc=f"{libc} {libc_version}".strip() or "unknown",
        cpu=_cpuinfo("model name") or platform.processor() or "unknown",
        cpus=len(os.sched_getaffinity(0)),
        cpu_quota=_cpu_quota(),
        cpu_flags=tuple(flag for flag in _CPU_FLAGS if flag in flags),
        memory_bytes=_memory_bytes(),
        shared_memory_bytes=_total_bytes("/dev/shm"),  # noqa: S108 - only its size is read
    )


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return f"{platform.system()} {platform.release()}"
    return f"{release.get('PRETTY_NAME', 'Linux')}, kernel {platform.release()}"


def _cpuinfo(key: str) -> str:
    """Return the first value of a key of /proc/cpuinfo, empty where there is none."""
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _cpu_quota() -> float | None:
    """Return the CPUs that cgroup v2 allows this container, None without a limit."""
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _memory_bytes() -> int | None:
    """Return the memory that this process can have: the host's, or less where cgroups say so."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    known = [int(match[1]) * 1024] if match else []
    known += [int(limit)] if limit.isdecimal() else []
    return min(known, default=None)


def _total_bytes(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
