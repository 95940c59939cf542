"""The embedded server: how it starts, what it says of models, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit.errors import (
    EnvironmentProblem,
    MissingDependencyError,
    ServerError,
    ServerTimeoutError,
    UsageError,
)
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available
from triton_toolkit.server.ports import Ports, choose_ports

DEADLINE_S = 30.0
AT_ONCE: dict[str, Any] = {"exit_timeout_s": 0}  # these tests need no models that end in good order

PYTHON_MODEL = """
import helper_of_the_model
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
PYTHON_CONFIG = """backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [2] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [2] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
MODEL_WITH_FAMILY = PYTHON_MODEL.replace(
    "class TritonPythonModel:",
    """import subprocess, tempfile
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.run(["sh", "-c", "setsid sleep 2000 &"], check=True)  # a daemon
tempfile.mkdtemp(prefix="of-the-model-")
class TritonPythonModel:""",
)
ENSEMBLE_CONFIG = """platform: "ensemble"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [2] } ]
output [ { name: "z" data_type: TYPE_FP32 dims: [2] } ]
ensemble_scheduling { step [
  { model_name: "echo" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "negate" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "z" } }
] }
"""


def add_python(root: Path, name: str, code: str = PYTHON_MODEL, config: str = PYTHON_CONFIG) -> None:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    (folder / "helper_of_the_model.py").write_text("VALUE = 1\n")
    (root / name / "config.pbtxt").write_text(config)


def add_onnx(root: Path, name: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    (root / name / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(root / name / "1" / "model.onnx"))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of all kinds of models, and of models that do not load."""
    root = tmp_path_factory.mktemp("repository")
    add_python(root, "echo")
    add_onnx(root, "negate")
    (root / "pipeline/1").mkdir(parents=True)
    (root / "pipeline/config.pbtxt").write_text(ENSEMBLE_CONFIG)
    add_python(root, "broken_code", code="import a_module_that_is_not_there\n")
    (root / "broken_text/1").mkdir(parents=True)
    (root / "broken_text/config.pbtxt").write_text('backend: "python"\nmax_batch: 4\n')
    (root / ".hidden/1").mkdir(parents=True)
    return root


@pytest.fixture(scope="session")
def server(embedded_server: Callable[..., EmbeddedServer], repository: Path) -> EmbeddedServer:
    return embedded_server(repository)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A repository of one quick model."""
    add_python(tmp_path, "echo")
    return tmp_path


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Return path -> modification time and hash, folders included."""
    return {
        str(path): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in (root, *root.rglob("*"))
    }


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(parent(int(entry.name)), []).append(int(entry.name))
    found, open_ends = set(), [pid]
    while open_ends:
        current = open_ends.pop()
        found.add(current)
        open_ends.extend(children.get(current, []))
    return found


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Traces:
    """What a server consists of, to be looked for after its end."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.processes = family(server.supervisor_pid)
        self.folder = server.folder
        self.shm_prefix = server.shm_prefix
        assert server.pid in self.processes
        assert len(self.processes) >= 4  # guardian, supervisor, server, a stub
        assert self.regions()
        assert self.environments()

    def regions(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"{self.shm_prefix}*"))

    def environments(self) -> list[Path]:
        """What Triton's Python backend makes in /tmp, whatever TMPDIR says."""
        return list(Path("/tmp").glob(f"{self.shm_prefix[:-1]}??????"))

    def left(self) -> list[object]:
        folders = [self.folder] if self.folder.exists() else []
        return [*filter(alive, self.processes), *self.regions(), *self.environments(), *folders]


def post(url: str, body: bytes = b"") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=10) as answer:
        return bytes(answer.read())


pytest_server = pytest.mark.server


@pytest_server
def test_all_kinds_of_models_are_ready(server: EmbeddedServer) -> None:
    states = {report.name: report.state for report in server.models() if report.version}
    assert states["echo"] == states["negate"] == states["pipeline"] == "READY"


@pytest_server
def test_a_request_goes_through_the_ensemble(server: EmbeddedServer) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -2]}]}'
    answer = post(f"{server.http_url}/v2/models/pipeline/infer", body)
    assert b'"data":[-1.0,2.0]' in answer


@pytest_server
def test_each_address_answers(server: EmbeddedServer) -> None:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        assert b"nv_inference_count" in answer.read()
    host, port = server.grpc_url.removeprefix("grpc://").split(":")
    with socket.create_connection((host, int(port)), timeout=10):
        pass
    assert post(f"{server.http_url}/v2/repository/index")


@pytest_server
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("broken_code", "No module named 'a_module_that_is_not_there'"),
        ("broken_text", 'has no field named "max_batch"'),
    ],
)
def test_a_model_that_does_not_load_says_why(server: EmbeddedServer, model: str, words: str) -> None:
    (report,) = [report for report in server.models() if report.name == model]
    assert (report.state, report.ready) == ("UNAVAILABLE", False)
    assert words in report.reason
    assert "model.py" not in report.reason.partition("\n")[2]  # no stack frames
    assert server.load_error(model) == report.reason


@pytest_server
def test_a_model_that_loads_has_no_reason(server: EmbeddedServer) -> None:
    assert server.load_error("echo") == ""


@pytest_server
def test_hidden_folders_are_no_models(server: EmbeddedServer) -> None:
    assert ".hidden" not in [report.name for report in server.models()]


@pytest_server
def test_the_repository_is_unchanged_by_a_whole_life(single: Path) -> None:
    add_onnx(single, "negate")
    before = snapshot(single)
    with EmbeddedServer(ServeOptions(repository=single, **AT_ONCE)) as server:
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
        for model in ("echo", "negate"):
            assert post(f"{server.http_url}/v2/models/{model}/infer", body)
    assert snapshot(single) == before


@pytest_server
def test_nothing_is_left_after_the_end(single: Path) -> None:
    with EmbeddedServer(ServeOptions(repository=single)) as server:
        traces = Traces(server)
        assert server.alive
    assert traces.left() == []
    assert not server.alive
    assert "Started GRPCInferenceService" in server.log_text()  # readable still


@pytest_server
def test_nothing_is_left_after_an_exception_inside(single: Path) -> None:
    traces = []

    def serve_and_fail() -> None:
        with EmbeddedServer(ServeOptions(repository=single, **AT_ONCE)) as server:
            traces.append(Traces(server))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve_and_fail()
    assert traces[0].left() == []


@pytest_server
def test_processes_and_temporary_files_of_a_model_go_with_the_server(tmp_path: Path) -> None:
    add_python(tmp_path, "parent", code=MODEL_WITH_FAMILY)
    with EmbeddedServer(ServeOptions(repository=tmp_path, **AT_ONCE)) as server:
        traces = Traces(server)
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in traces.processes]
        assert names.count("sleep") >= 2  # Triton imports a model twice: once to complete its config
        assert list((server.folder / "tmp").glob("of-the-model-*"))
    assert traces.left() == []


@pytest_server
def test_a_packed_environment_is_unpacked_under_the_servers_name(tmp_path: Path) -> None:
    activate = tmp_path / "activate"
    activate.write_text("export OF_THE_ENVIRONMENT=yes\n")
    (tmp_path / "repository").mkdir()
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(activate, "bin/activate")
    path = f'{{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{tmp_path / "packed.tar.gz"}" }} }}'
    code = "import os\nassert os.environ['OF_THE_ENVIRONMENT'] == 'yes'\n" + PYTHON_MODEL
    add_python(tmp_path / "repository", "packed", code, f"{PYTHON_CONFIG}parameters {path}\n")
    with EmbeddedServer(ServeOptions(repository=tmp_path / "repository", **AT_ONCE)) as server:
        assert server.load_error("packed") == ""
        traces = Traces(server)
        assert [path for folder in traces.environments() for path in folder.rglob("bin/activate")]
        os.kill(server.pid, signal.SIGKILL)
    assert traces.left() == []


@pytest_server
def test_a_model_that_hangs_in_its_end_cannot_hold_the_server(tmp_path: Path) -> None:
    code = PYTHON_MODEL + "    def finalize(self):\n        import time\n        time.sleep(1000)\n"
    add_python(tmp_path, "stubborn", code=code)
    with EmbeddedServer(ServeOptions(repository=tmp_path, exit_timeout_s=1)) as server:
        traces = Traces(server)
    assert traces.left() == []


@pytest_server
@pytest.mark.parametrize("victim", ["server", "supervisor", "guardian"])
def test_a_killed_process_takes_the_rest_along(tmp_path: Path, victim: str) -> None:
    add_python(tmp_path, "echo", code=MODEL_WITH_FAMILY)
    with EmbeddedServer(ServeOptions(repository=tmp_path, **AT_ONCE)) as server:
        traces = Traces(server)
        victims = {"server": server.pid, "supervisor": parent(server.pid), "guardian": server.supervisor_pid}
        assert len(set(victims.values())) == 3
        os.kill(victims[victim], signal.SIGKILL)
        assert wait_for(lambda: not any(map(alive, traces.processes)))
        assert not server.alive
        how = r" \(killed by SIGKILL\)" if victim == "server" else ""
        with pytest.raises(ServerError, match=f"ended by itself{how} while model 'echo' was loaded"):
            server.load("echo")
        with pytest.raises(ServerError, match=f"ended by itself{how} while it served"):
            server.wait()
        if victim != "guardian":
            assert traces.left() == []
    assert traces.left() == []


@pytest_server
def test_nothing_is_left_of_a_server_that_lost_its_guardian(single: Path) -> None:
    with EmbeddedServer(ServeOptions(repository=single, **AT_ONCE)) as server:
        traces = Traces(server)
        os.kill(server.supervisor_pid, signal.SIGKILL)
    assert wait_for(lambda: traces.left() == []), traces.left()


@pytest_server
@pytest.mark.parametrize("victim", ["supervisor", "guardian"])
def test_a_group_that_is_killed_does_not_hold_both(single: Path, victim: str) -> None:
    with EmbeddedServer(ServeOptions(repository=single, **AT_ONCE)) as server:
        traces = Traces(server)
        pid = parent(server.pid) if victim == "supervisor" else server.supervisor_pid
        os.killpg(pid, signal.SIGKILL)
    assert traces.left() == []


PARENT = """
import os, sys, time
from pathlib import Path
from triton_toolkit.server.ports import Ports, choose_ports
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions
import threading

def serve():
    with EmbeddedServer(ServeOptions(repository=Path(sys.argv[1]), load=None, exit_timeout_s=0)) as server:
        server.load("echo")
        if sys.argv[2] == "fork":  # a forked child holds all open files of its parent
            os.fork() or time.sleep(1000)
        print(server.supervisor_pid, server.folder, server.shm_prefix, flush=True)
        time.sleep(1000)

if sys.argv[2] == "thread":
    # The thread that started the server ends before the process does.
    server = EmbeddedServer(ServeOptions(repository=Path(sys.argv[1]), exit_timeout_s=0))
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(1)
    assert server.alive, "the server ended with the thread that started it"
    print(server.supervisor_pid, server.folder, server.shm_prefix, flush=True)
    time.sleep(1000)
serve()
"""


@pytest_server
@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("main", signal.SIGKILL),
        ("thread", signal.SIGKILL),
        ("fork", signal.SIGKILL),
        ("main", signal.SIGTERM),
        ("main", signal.SIGINT),
    ],
)
def test_nothing_is_left_when_the_program_is_ended(single: Path, how: str, number: int) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(single), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        pid, folder, prefix = program.stdout.readline().split()
        processes = family(int(pid))
        assert len(processes) >= 3
        # A terminal's ctrl-C goes to the whole foreground group.
        (os.kill if how == "fork" else os.killpg)(program.pid, number)
        program.wait(DEADLINE_S)

        def gone() -> bool:
            regions = list(Path("/dev/shm").glob(f"{prefix}*"))
            return not any(map(alive, processes)) and not regions and not Path(folder).exists()

        assert wait_for(gone)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def leftovers() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tt-serve-")}


@pytest_server
@pytest.mark.parametrize("name", ["grpc", "http", "metrics"])
def test_a_taken_port_is_named(
    single: Path,
    taken_port: int,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    options = ServeOptions(repository=single, **{f"{name}_port": taken_port})  # type: ignore[arg-type]
    with pytest.raises(EnvironmentProblem) as caught, EmbeddedServer(options):
        pass
    assert f"port {taken_port} of 127.0.0.1 (--{name}-port): Address already in use" in str(caught.value)
    assert str(taken_port) in caught.value.hint
    assert leftovers() == set()


@pytest_server
def test_a_free_port_that_is_snatched_away_costs_another_try(
    single: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the choice of a free port and the server's start anybody may take it."""
    chosen: list[Ports] = []

    def choose(*args: Any, **kwargs: Any) -> Ports:
        ports = choose_ports(*args, **kwargs)
        chosen.append(ports if chosen else replace(ports, http=taken_port))
        return chosen[-1]

    monkeypatch.setattr("triton_toolkit.server.embedded.choose_ports", choose)
    with EmbeddedServer(ServeOptions(repository=single, load=None, **AT_ONCE)) as server:
        assert len(chosen) == 2
        assert server.http_url.endswith(f":{chosen[1].http}")


@pytest_server
def test_an_address_that_is_not_this_hosts_is_refused(single: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"of 192\.0\.2\.1 .*Cannot assign") as caught:
        EmbeddedServer(ServeOptions(repository=single, host="192.0.2.1")).start()
    assert "--host" in caught.value.hint


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "", "127.0.0.1 "])
def test_a_host_without_an_address_is_refused(single: Path, host: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot listen on .* \(--host\)"):
        EmbeddedServer(ServeOptions(repository=single, host=host)).start()


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as holder:
        holder.bind(("::1", 0))
        return True
    return False


@pytest_server
@pytest.mark.parametrize(
    ("host", "shown"),
    [
        pytest.param(
            "::1", "[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
        ),
        ("localhost", "127.0.0.1"),
    ],
)
def test_it_listens_on_an_ipv6_address_and_on_a_name(single: Path, host: str, shown: str) -> None:
    options = ServeOptions(repository=single, host=host, load=None, ready_timeout_s=30.0, **AT_ONCE)
    with EmbeddedServer(options) as server:
        assert server.http_url.startswith(f"http://{shown}:")
        assert server.grpc_url.startswith(f"grpc://{shown}:")
        assert post(f"{server.http_url}/v2/repository/index")
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            assert answer.status == 200
        with socket.create_connection((shown.strip("[]"), int(server.grpc_url.rpartition(":")[2])), 10):
            pass


@pytest_server
def test_wanted_ports_are_used_and_a_second_server_gets_others(single: Path, taken_port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        free = holder.getsockname()[1]
    options = ServeOptions(repository=single, grpc_port=free, load=None, **AT_ONCE)
    with (
        EmbeddedServer(options) as first,
        EmbeddedServer(ServeOptions(repository=single, load=None, **AT_ONCE)) as second,
    ):
        assert first.grpc_url == f"grpc://127.0.0.1:{free}"
        urls = {first.grpc_url, first.http_url, first.metrics_url}
        assert not urls & {second.grpc_url, second.http_url, second.metrics_url}


@pytest_server
def test_only_the_wanted_models_are_loaded(repository: Path) -> None:
    with EmbeddedServer(ServeOptions(repository=repository, load=("negate",), **AT_ONCE)) as server:
        assert [report.name for report in server.models() if report.ready] == ["negate"]
        assert {report.state for report in server.models() if report.name == "echo"} == {"UNLOADED"}


@pytest_server
def test_a_name_that_a_url_would_escape_is_loaded_and_one_that_it_cannot_hold_is_told(
    tmp_path: Path,
) -> None:
    for name in ("a+b", "a b"):
        add_python(tmp_path, name, PYTHON_MODEL.replace("import helper_of_the_model\n", ""))
    with EmbeddedServer(ServeOptions(repository=tmp_path, load=("a+b",), **AT_ONCE)) as server:
        assert {report.name: report.ready for report in server.models()} == {"a+b": True, "a b": False}
        assert "'a b' cannot be named over HTTP" in server.load("a b")


@pytest_server
def test_an_unknown_model_is_named_with_a_near_one(repository: Path) -> None:
    with (
        pytest.raises(UsageError, match="no model 'negat'; did you mean 'negate'"),
        EmbeddedServer(ServeOptions(repository=repository, load=("negat",), **AT_ONCE)),
    ):
        pass


@pytest_server
def test_a_model_that_takes_too_long_ends_the_start(tmp_path: Path) -> None:
    code = PYTHON_MODEL + "    def initialize(self, args):\n        import time\n        time.sleep(1000)\n"
    add_python(tmp_path, "slow", code=code)
    options = ServeOptions(repository=tmp_path, ready_timeout_s=2, **AT_ONCE)
    server = EmbeddedServer(options)
    with pytest.raises(ServerTimeoutError, match="did not answer in time while model 'slow' was loaded"):
        server.start()
    assert not server.alive


@pytest_server
def test_a_server_that_refuses_its_flags_shows_its_words(single: Path) -> None:
    options = ServeOptions(repository=single, extra_args=("--no-such-flag=1",))
    with (
        pytest.raises(ServerError, match=r"ended by itself \(exit code 1\) while it started") as caught,
        EmbeddedServer(options),
    ):
        pass
    assert "no-such-flag" in caught.value.detail


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="nowhere: no such folder"):
        EmbeddedServer(ServeOptions(repository=tmp_path / "nowhere")).start()
    with pytest.raises(EnvironmentProblem, match="no such folder"):
        EmbeddedServer(ServeOptions(repository=tmp_path / ("x" * 300))).start()


@pytest_server
def test_what_is_found_is_there() -> None:
    info = check_available()
    assert info.version == "2.51.0"
    assert info.server.is_file()
    assert f"/{sys.version_info.major}.{sys.version_info.minor}/" in str(info.stub)


@pytest.mark.parametrize(
    ("system", "machine", "libc", "words"),
    [
        ("darwin", "arm64", ("", ""), "wheels for Linux on x86_64 and aarch64 only"),
        ("linux", "ppc64le", ("glibc", "2.36"), "on ppc64le"),
        ("linux", "x86_64", ("glibc", "2.31"), "needs glibc 2.35 or newer; this host has glibc 2.31"),
        ("linux", "x86_64", ("", ""), "musl"),
    ],
)
def test_a_platform_without_a_wheel_is_refused(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str], words: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    with pytest.raises(MissingDependencyError) as caught:
        check_available()
    assert words in str(caught.value)
    assert "nvcr.io/nvidia/tritonserver" in caught.value.hint


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(MissingDependencyError, match="nvidia-pytriton is not installed") as caught:
        check_available()
    assert caught.value.hint == "pip install 'triton-toolkit[serve]'"


@pytest_server
def test_a_python_without_a_stub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", _Version((3, 14)))
    with pytest.raises(MissingDependencyError, match=r"no Python backend for Python 3\.14; it has 3\.10"):
        check_available()


class _Version(tuple[int, ...]):
    """As much of ``sys.version_info`` as is asked for."""

    @property
    def major(self) -> int:
        return self[0]

    @property
    def minor(self) -> int:
        return self[1]


def test_no_character_of_the_repositorys_path_reaches_a_shell(tmp_path: Path) -> None:
    repository = tmp_path / "my project $(touch pwned) `touch pwned` é"
    add_python(repository, "echo")
    add_python(repository, "broken", config=PYTHON_CONFIG.replace("TYPE_FP32", "TYPE_FP33", 1))
    with EmbeddedServer(ServeOptions(repository=repository, ready_timeout_s=60.0, **AT_ONCE)) as server:
        models = {report.name: report for report in server.models()}
        assert models["echo"].ready
        assert str(repository / "broken") in models["broken"].reason
        assert not Path(f"/proc/{server.pid}/cwd", "pwned").exists()
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()


def test_a_temporary_folder_that_is_unsafe_in_a_shell_is_refused(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(EnvironmentProblem, match="not safe in a shell") as caught:
        EmbeddedServer(ServeOptions(repository=single)).start()
    assert "TMPDIR" in caught.value.hint
    assert list(folder.iterdir()) == []


def test_no_folder_is_left_by_a_start_that_is_interrupted_before_there_is_a_process(
    single: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr("triton_toolkit.server.embedded.server_variables", interrupt)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer(ServeOptions(repository=single)).start()
    assert leftovers() == set()


def test_a_model_that_the_server_drops_from_its_index_is_still_reported(tmp_path: Path) -> None:
    add_python(tmp_path, "echo")
    add_python(tmp_path, "empty")
    (tmp_path / "empty/1").rename(tmp_path / "empty/v1")
    with EmbeddedServer(ServeOptions(repository=tmp_path, **AT_ONCE)) as server:
        models = {report.name: report for report in server.models()}
    assert models["echo"].ready
    assert models["empty"].state == "UNAVAILABLE"
    assert "at least one version must be available" in models["empty"].reason


def test_a_port_whose_last_connections_have_just_ended_is_free() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()  # this side ends first, so the port is in TIME_WAIT
            assert client.recv(1) == b""
    assert choose_ports("127.0.0.1", grpc=port, http=None, metrics=None).grpc == port
