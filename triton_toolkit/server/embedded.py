"""The embedded server as a context manager.

    with EmbeddedServer(ServeOptions(repository=Path("model_repository"))) as server:
        print(server.grpc_url, server.models())

The repository is only read. A model that does not load does not stop the server: its state and the
server's own reason are reported.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import difflib
import errno
import http.client
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from triton_toolkit._progress import Progress, Silent
from triton_toolkit.errors import EnvironmentProblem, ServerError, ServerTimeoutError, UsageError
from triton_toolkit.server.control import Control, ModelReport
from triton_toolkit.server.environment import server_variables
from triton_toolkit.server.folder import ServerFolder
from triton_toolkit.server.locate import EmbeddedInfo, check_available
from triton_toolkit.server.log import clean, reason_of_failure
from triton_toolkit.server.options import ServeOptions
from triton_toolkit.server.ports import Ports, address_of, choose_ports, port_error
from triton_toolkit.server.process import (
    PARALLEL_LOADS,
    Launch,
    ServerProcess,
    command_line,
    tail,
)

__all__ = ["EmbeddedInfo", "EmbeddedServer", "ModelReport", "ServeOptions", "check_available"]

_ATTEMPTS = 5  # each takes about half a second; losing a race for a free port is rare
_REQUEST_S = 10.0
_END_S = 5.0  # from a broken connection to the end of the supervisor
_TAKEN = "already in use"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class EmbeddedServer:
    """A real Triton server, ended at the end of the ``with`` block, at the latest with this process.

    Args:
        options: What to serve.
        progress: Told about the start and each model.

    Entering raises:
        MissingDependencyError: The embedded server cannot run here; says what to install.
        EnvironmentProblem: The repository is missing, or a wanted port is taken.
        UsageError: A model to load is not in the repository.
        ServerError: The server ended by itself while it started; ``detail`` has its last lines.
        ServerTimeoutError: Not all models were READY or failed in ``ready_timeout_s``.
    """

    def __init__(self, options: ServeOptions, *, progress: Progress | None = None) -> None:
        self.options = replace(options, repository=Path(os.path.abspath(options.repository)))
        self._progress = progress or Silent()
        self._process: ServerProcess | None = None
        self._ports: Ports | None = None
        self._host = ""
        self._reasons: dict[str, str] = {}
        self._reached = self.options.repository

    def __enter__(self) -> Self:
        """Start the server and load the models."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        self.stop()

    @property
    def grpc_url(self) -> str:
        """Such as ``grpc://127.0.0.1:8001``."""
        return f"grpc://{self._address(self._known_ports().grpc)}"

    @property
    def http_url(self) -> str:
        """Such as ``http://127.0.0.1:8000``."""
        return f"http://{self._address(self._known_ports().http)}"

    @property
    def metrics_url(self) -> str:
        """Such as ``http://127.0.0.1:8002/metrics``."""
        return f"http://{self._address(self._known_ports().metrics)}/metrics"

    @property
    def pid(self) -> int:
        """The process id of ``tritonserver``."""
        return self._running().pid

    @property
    def supervisor_pid(self) -> int:
        """The process that watches over it; SIGTERM to it ends the server cleanly."""
        return self._running().supervisor_pid

    @property
    def folder(self) -> Path:
        """Its temporary folder, gone when it has ended."""
        return self._running().folder.path

    @property
    def shm_prefix(self) -> str:
        """How the names of its regions in ``/dev/shm`` begin."""
        return self._running().folder.shm_prefix

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process is not None and self._process.alive

    def wait(self) -> NoReturn:
        """Block for as long as the server runs.

        Raises:
            ServerError: It ended by itself.
        """
        self._running().wait()
        raise self._running().ended_error("while it served")

    def models(self) -> list[ModelReport]:
        """Return each model of the repository, each loaded version, with its state and reason.

        Raises:
            ServerError: The server has ended, or does not answer.
        """
        index = self._index()
        dropped = self._reasons.keys() - {report.name for report in index if report.version}
        # Triton leaves some models that failed out of its index, or without a state.
        index = [report for report in index if report.name not in dropped]
        index += [ModelReport(name=name, version="", state="UNAVAILABLE", reason="") for name in dropped]
        return [
            replace(
                report,
                state="UNAVAILABLE" if report.name in self._reasons and not report.ready else report.state,
                reason="" if report.ready else self._reasons.get(report.name) or clean(report.reason),
            )
            for report in sorted(index, key=lambda report: (report.name, report.version))
            if not report.name.startswith(".")
        ]

    def load_error(self, model: str) -> str:
        """Return why a model did not load, in the server's own words; "" where nothing failed."""
        return next((report.reason for report in self.models() if report.name == model and report.reason), "")

    def load(self, model: str, *, timeout_s: float = 120.0) -> str:
        """Load a model, or load it again after its files changed; return "" or the server's reason.

        Raises:
            ServerTimeoutError: It was not loaded in time.
            ServerError: The server has ended, or does not answer.
        """
        control = self._control()
        with self._questions(f"while model {model!r} was loaded"):
            answer = control.load(model, timeout_s)
        self._reasons.pop(model, None)
        if answer:
            reason = reason_of_failure(model, answer, self.log_text())
            self._reasons[model] = reason.replace(str(self._reached), str(self.options.repository))
        return self._reasons.get(model, "")

    def log_text(self) -> str:
        """Return the server's whole output so far; after its end as well."""
        return self._running().log_text()

    def start(self) -> None:
        """Start the server; ``with`` does so."""
        if not os.path.isdir(self.options.repository):  # Path.is_dir raises for a name that is too long
            raise EnvironmentProblem(
                f"model repository {self.options.repository}: no such folder",
                hint="`tt build` writes one; or name another folder",
            )
        deadline = time.monotonic() + self.options.ready_timeout_s
        info = check_available()
        self._host = address_of(self.options.host)
        self._progress.step("server", f"starting Triton {info.version}")
        try:
            self._listen(info, deadline)
            self._load_models(deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and all that belongs to it; ``with`` does so. Idempotent."""
        if self._process is not None:
            self._process.end()

    def detach(self, state: dict[str, object]) -> None:
        """Let the server live on after this process; ``state`` goes to ``options.state_file``."""
        self._running().detach(state)

    def _listen(self, info: EmbeddedInfo, deadline: float) -> None:
        """Start until the server listens; again, on other ports, when a free one was snatched away."""
        options = self.options
        for attempt in range(1, _ATTEMPTS + 1):
            ports = choose_ports(
                self._host, grpc=options.grpc_port, http=options.http_port, metrics=options.metrics_port
            )
            self._process = self._launch(info, ports)
            try:
                self._process.wait_until_listening(ports.as_set(), deadline)
            except ServerError:
                log = self._process.log_text()
                self._process.end()
                if _TAKEN not in log:
                    raise
                self._raise_if_wanted(log, ports)
                if attempt == _ATTEMPTS:
                    raise
                continue
            self._ports = ports
            return

    def _launch(self, info: EmbeddedInfo, ports: Ports) -> ServerProcess:
        folder = ServerFolder(info)
        try:
            return self._launch_in(folder, info, ports)
        except BaseException:
            folder.discard()
            raise

    def _launch_in(self, folder: ServerFolder, info: EmbeddedInfo, ports: Ports) -> ServerProcess:
        options = self.options
        self._reached = folder.reach(options.repository)
        flags = (
            f"--model-repository={self._reached}",
            f"--http-address={f'ipv6:{self._host}' if ':' in self._host else self._host}",
            f"--grpc-address={_in_url(self._host)}",
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--exit-timeout-secs={options.exit_timeout_s}",
            *options.extra_args,
        )
        launch = Launch(
            argv=command_line(folder, info, flags),
            exit_timeout_s=options.exit_timeout_s,
            log=options.log or folder.log,
            state_file=options.state_file,
            lock_file=options.lock_file,
        )
        variables = server_variables(
            os.environ,
            environment=folder.environment,
            libraries=info.libraries,
            temporary=folder.temporary,
        )
        return ServerProcess(folder, launch, variables)

    def _raise_if_wanted(self, log: str, ports: Ports) -> None:
        """Raise about a port that was asked for and got lost between the check and the start."""
        wanted = {
            "grpc": self.options.grpc_port,
            "http": self.options.http_port,
            "metrics": self.options.metrics_port,
        }
        for name, port in wanted.items():
            if port is not None and f":{port}' {_TAKEN}" in log:
                taken = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                raise port_error(self.options.host, port, f"--{name}-port", taken)

    def _load_models(self, deadline: float) -> None:
        names = self._wanted_models()
        pool = concurrent.futures.ThreadPoolExecutor(PARALLEL_LOADS, thread_name_prefix="tt-load")
        try:
            futures = {}
            for name in names:
                self._progress.step(name, "loading")
                futures[pool.submit(self._load_before, name, deadline)] = name
            for future in concurrent.futures.as_completed(futures):
                reason = future.result()
                self._progress.note(futures[future], f"did not load: {reason}" if reason else "READY")
        except BaseException:
            # The waiting calls end when the server does; until then nobody waits for them.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    def _load_before(self, model: str, deadline: float) -> str:
        return self.load(model, timeout_s=max(deadline - time.monotonic(), 0.1))

    def _wanted_models(self) -> list[str]:
        known = sorted({report.name for report in self._index()})
        if self.options.load == "all":
            return [name for name in known if not name.startswith(".")]
        for name in self.options.load or ():
            if name not in known:
                raise self._unknown_model(name, known)
        return list(dict.fromkeys(self.options.load or ()))

    def _unknown_model(self, name: str, known: Iterable[str]) -> UsageError:
        near = difflib.get_close_matches(name, list(known), n=1)
        return UsageError(
            f"{self.options.repository}: no model {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"models of this repository: {', '.join(known) or 'none'}",
        )

    def _index(self) -> list[ModelReport]:
        control = self._control()
        with self._questions("while it served"):
            return control.index(_REQUEST_S)

    @contextlib.contextmanager
    def _questions(self, when: str) -> Iterator[None]:
        """Turn what goes wrong with a request into one clear error."""
        process = self._running()
        try:
            yield
        except TimeoutError:
            raise ServerTimeoutError(
                f"the embedded server did not answer in time {when}", detail=tail(self.log_text())
            ) from None
        except (OSError, http.client.HTTPException) as exc:
            if process.wait(_END_S):
                raise process.ended_error(when) from None
            raise ServerError(
                f"the embedded server does not answer {when}: {exc}", detail=tail(self.log_text())
            ) from exc

    def _address(self, port: int) -> str:
        return f"{_in_url(_WILDCARDS.get(self._host, self._host))}:{port}"

    def _control(self) -> Control:
        return Control(_WILDCARDS.get(self._host, self._host), self._known_ports().http)

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise ServerError("the embedded server has not been started")
        return self._ports

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise ServerError("the embedded server has not been started")
        return self._process


def _in_url(host: str) -> str:
    """Return an address as it is written before a port."""
    return f"[{host}]" if ":" in host else host
