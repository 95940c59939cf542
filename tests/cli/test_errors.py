"""What users see when something is wrong: one message, the right exit code, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from triton_toolkit import _interrupts
from triton_toolkit.cli import ToolkitGroup, cli
from triton_toolkit.errors import (
    EXIT_INTERRUPTED,
    DeployError,
    EnvironmentProblem,
    ExportError,
    MissingDependencyError,
    ServerTimeoutError,
    SpecError,
    TritonToolkitError,
    UsageError,
)


def failing(error: BaseException) -> ToolkitGroup:
    """Return a root group whose only command raises ``error``."""

    class Group(ToolkitGroup):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return ["fail"]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            @click.command("fail")
            def fail() -> None:
                raise error

            return fail

    return Group("tt")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (SpecError("x"), 2),
        (MissingDependencyError("x"), 3),
        (EnvironmentProblem("x"), 3),
        (ServerTimeoutError("x"), 3),
        (ExportError("x"), 1),
        (DeployError("x"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert CliRunner().invoke(failing(error), ["fail"]).exit_code == code


def test_a_known_error_has_no_traceback() -> None:
    result = CliRunner().invoke(failing(SpecError("wrong", hint="do this")), ["fail"])
    assert result.stderr == "Error: wrong\nHint: do this\n"
    assert result.stdout == ""


def test_a_bug_keeps_its_traceback() -> None:
    result = CliRunner().invoke(failing(ZeroDivisionError("division")), ["fail"])
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError: division" in result.stderr


@pytest.mark.parametrize("command", ["build", "deploy --to local", "status --to local"])
def test_a_missing_spec_is_named(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--spec", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert f"{tmp_path}/none.yaml: no such file" in result.stderr
    assert "tt init" in result.stderr


def test_with_json_an_error_is_json_too(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["build", "--json", "--spec", str(tmp_path / "none.yaml")])
    assert json.loads(result.stdout)["error"] == "SpecError"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("deploy --json", "Missing option '--to'."),
        ("deploy --to x --json --nonsense", "No such option"),
        ("nonsense --json", "No such command 'nonsense'."),
        ("--nonsense build --json", "No such option"),
    ],
)
def test_with_json_wrong_usage_is_json_too(words: str, message: str) -> None:
    result = CliRunner().invoke(cli, words.split())
    error = json.loads(result.stdout)
    assert result.exit_code == 2
    assert error["error"] == "UsageError"
    assert error["message"].startswith(message)
    assert error["hint"] == ""
    assert f"Error: {message}" in result.stderr


@pytest.mark.parametrize("words", ["deploy", "build --nonsense", "build --nonsense -- --json"])
def test_without_json_wrong_usage_leaves_stdout_empty(words: str) -> None:
    result = CliRunner().invoke(cli, words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


@pytest.mark.parametrize("kind", [ImportError, SystemError, RuntimeError])
@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_an_import_that_was_interrupted_is_an_interrupt(kind: type[Exception], link: str) -> None:
    behind, error = ImportError("numpy"), kind("initialization failed")
    setattr(behind, link, KeyboardInterrupt())
    setattr(error, link, behind)
    result = CliRunner().invoke(failing(error), ["fail"])
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize(("interrupted", "code"), [(True, 130), (False, 70)])
def test_an_import_error_that_hides_the_interrupt_is_one_too(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool, code: int
) -> None:
    monkeypatch.setattr(_interrupts, "_raised", [])
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            _interrupts._raise(2, None)
    error = ImportError("numpy.core.multiarray failed to import")
    assert CliRunner().invoke(failing(error), ["fail"]).exit_code == code


def test_an_interrupt_that_an_extension_prints_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _interrupts._print_unless_interrupt(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == ""
    _interrupts._print_unless_interrupt(ValueError, ValueError("shown"), None)
    assert capsys.readouterr().err == "ValueError: shown\n"


def test_the_exit_code_of_the_handlers_is_the_documented_one() -> None:
    assert _interrupts._EXIT_INTERRUPTED == EXIT_INTERRUPTED


def test_a_bug_while_an_interrupt_is_handled_keeps_its_traceback() -> None:
    error = ZeroDivisionError("in the clean-up")
    error.__context__ = KeyboardInterrupt()
    result = CliRunner().invoke(failing(error), ["fail"])
    assert result.exit_code == 130
    assert "ZeroDivisionError: in the clean-up" in result.stderr


def test_errors_that_lead_to_each_other_are_walked_once() -> None:
    first, second = ImportError("a"), ImportError("b")
    first.__context__, second.__context__ = second, first
    assert CliRunner().invoke(failing(first), ["fail"]).exit_code == 70


BAD = {
    "syntax": ("spec: 1\nmodels: [", "YAML syntax error"),
    "unknown key": ("spec: 1\nmodels: {m: {kind: onnx, sorce: a.onnx}}", "'sorce'; did you mean 'source'?"),
    "slash": ("spec: 1\nmodels: {a/b: {kind: onnx, source: a.onnx}}", "'a/b' cannot be used as a name"),
    "dots": ("spec: 1\nmodels: {'..': {kind: onnx, source: a.onnx}}", "'..' cannot be used as a name"),
    "no models": ("spec: 1\nmodels: {}", "models"),
    "version": ("spec: 2\nmodels: {m: {kind: onnx, source: a}}", "spec"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_wrong_spec_is_refused_before_anything_is_written(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tt.yaml").write_text(text)
    result = CliRunner().invoke(cli, ["build", "--spec", str(tmp_path / "tt.yaml")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tt.yaml"]


def test_every_error_class_is_exported_with_a_documented_code() -> None:
    def tree(base: type[TritonToolkitError]) -> set[type[TritonToolkitError]]:
        return {base}.union(*(tree(child) for child in base.__subclasses__()))

    assert {error.exit_code for error in tree(TritonToolkitError)} <= {1, 2, 3}


def test_a_wrong_key_below_serve_is_found_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "tt.yaml").write_text(
        "spec: 1\nmodels:\n  m:\n    kind: onnx\n    source: a.onnx\n"
        "    serve:\n      dynamic_batching:\n        max_queue_delay_microsecs: 1ms\n"
    )
    result = CliRunner().invoke(cli, ["build", "--spec", str(tmp_path / "tt.yaml")])
    assert result.exit_code == 2
    assert "tt.yaml:8:9: models.m.serve.dynamic_batching.max_queue_delay_microsecs" in result.stderr
    assert "max_queue_delay_microseconds" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tt.yaml"]


def test_a_batch_dimension_begins_at_one(tmp_path: Path) -> None:
    (tmp_path / "tt.yaml").write_text(
        "spec: 1\nmodels:\n  m:\n    source: a:b\n    inputs: {x: {shape: [batch, 4]}}\n"
        "    dims: {batch: [2, 4, 8]}\n    batch_dim: batch\n"
    )
    result = CliRunner().invoke(cli, ["build", "--spec", str(tmp_path / "tt.yaml")])
    assert result.exit_code == 2
    assert "tt.yaml:6:12: models.m.dims.batch: starts at 2, and Triton sends batches of 1" in result.stderr
