"""A stage is asked of the cache first, and what it made is kept only where nothing changed meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit._progress import Silent
from triton_toolkit.build.cache import StageCache
from triton_toolkit.build.recipe import Context
from triton_toolkit.build.stage import Stage, run_stage
from triton_toolkit.export.trace_files import missing_name


@dataclass
class Figures:
    value: int
    log: str = "token s3cr3t"
    dependencies: list[str] = field(default_factory=lambda: ["net.py"])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Work:
    """A stage that counts its runs and writes its number."""

    def __init__(self, context: Context, tmp_path: Path) -> None:
        self.context = context
        self.runs = 0
        self.key = {"spec": "1"}
        self.meanwhile: Callable[[], object] = lambda: None
        self.dependencies = ["net.py"]
        self._folders = tmp_path / "folders"

    def __call__(self) -> tuple[Figures, str]:
        folder = self._folders / str(time.monotonic_ns())
        folder.mkdir(parents=True)

        def run() -> Figures:
            self.runs += 1
            (folder / "model.onnx").write_text(f"run {self.runs}")
            self.meanwhile()
            return Figures(self.runs, dependencies=self.dependencies)

        def read(value: Mapping[str, Any]) -> Figures:
            return Figures(**value)

        stage = Stage(name="export", model="net", key=lambda: self.key, run=run, read=read)
        return run_stage(self.context, stage, folder, Silent()), (folder / "model.onnx").read_text()


@pytest.fixture
def work(project_of: ProjectOf, tmp_path: Path) -> Work:
    context = project_of("net: {kind: onnx, source: net.onnx}")
    (tmp_path / "net.py").write_text("one")
    os.utime(tmp_path / "net.py", (0, 0))
    cache = StageCache(tmp_path / "cache", tmp_path)
    return Work(
        Context(project=context.project, release=None, opset=18, ir_version=10, cache=cache), tmp_path
    )


def test_the_second_time_it_comes_from_the_cache(work: Work) -> None:
    assert work() == (Figures(1), "run 1")
    report, text = work()
    assert (report.value, text, work.runs) == (1, "run 1", 1)


def test_without_a_cache_it_runs_each_time(work: Work) -> None:
    context = work.context
    work.context = Context(project=context.project, release=None, opset=18, ir_version=10)
    assert [work()[0].value, work()[0].value] == [1, 2]


def test_what_the_stage_printed_is_not_shared(work: Work) -> None:
    work()
    assert work()[0].log == ""


def test_a_file_that_changes_meanwhile_is_not_taken_for_what_was_read(work: Work) -> None:
    net = work.context.project.root / "net.py"
    work.meanwhile = lambda: net.write_text("two")
    work()
    work.meanwhile = lambda: None
    assert work()[0].value == 2


def test_a_file_that_changes_meanwhile_and_is_dated_back_is_noticed(work: Work) -> None:
    net = work.context.project.root / "net.py"

    def change() -> None:
        net.write_text("two")
        os.utime(net, (0, 0))

    work.meanwhile = change
    work()
    work.meanwhile = lambda: None
    assert work()[0].value == 2


def test_a_file_that_goes_meanwhile_is_not_taken_for_one_that_was_missing(work: Work) -> None:
    work.meanwhile = (work.context.project.root / "net.py").unlink
    work()
    work.meanwhile = lambda: None
    assert work()[0].value == 2


def test_a_file_that_was_missing_is_part_of_the_result(work: Work) -> None:
    work.dependencies = ["net.py", missing_name("finetuned.txt")]
    assert [work()[0].value, work()[0].value] == [1, 1]
    (work.context.project.root / "finetuned.txt").write_text("")
    assert work()[0].value == 2


def test_a_missing_file_that_comes_meanwhile_keeps_nothing(work: Work) -> None:
    work.dependencies = ["net.py", missing_name("finetuned.txt")]
    work.meanwhile = (work.context.project.root / "finetuned.txt").touch
    work()
    (work.context.project.root / "finetuned.txt").unlink()
    work.meanwhile = lambda: None
    assert work()[0].value == 2


def test_a_key_that_changes_meanwhile_keeps_nothing(work: Work) -> None:
    work.meanwhile = lambda: work.key.update(spec="2")
    work()
    work.meanwhile = lambda: None
    assert work()[0].value == 2
    work.key["spec"] = "1"
    assert work()[0].value == 3
