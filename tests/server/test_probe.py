"""`tt probe` against the real server: models whose behaviour is known, good and bad."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from triton_toolkit.cli import cli
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.repository.passport import Passport, Samples, write_passport, write_samples
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server

_MODEL = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.behaviour = config["parameters"]["behaviour"]["string_value"]
        self.calls = 0
        if self.behaviour == "unloadable":
            raise ValueError("this model does not load")

    def execute(self, requests):
        if self.behaviour in ("steady", "mixed", "crowded"):
            time.sleep(0.005)
        if self.behaviour == "late":
            time.sleep(0.5)
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        outputs = [self.answer(x) for x in inputs]
        if self.behaviour == "mixed":
            outputs = outputs[1:] + outputs[:1]  # each request gets its neighbour's answer
        return [self.response(y) for y in outputs]

    def answer(self, x):
        y = x * 2
        if self.behaviour == "nan":
            y.flat[0] = np.nan
        if self.behaviour == "random":
            y = np.random.random_sample(x.shape).astype(np.float32)
        if self.behaviour == "wide":
            y = y.astype(np.float64)
        if self.behaviour == "longer":
            y = np.concatenate([y, y], axis=1)
        return y

    def response(self, y):
        self.calls += 1
        if self.behaviour == "flaky" and self.calls % 10 == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("every tenth fails"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""

_TEXT_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            lengths = np.array([[len(row[0])] for row in text], np.int64) + ids.sum(axis=1, keepdims=True)
            longest = max(len(row[0]) for row in text)
            letters = np.array([list(row[0].ljust(longest, b"\\0")) for row in text], np.int64)
            tensors = [pb_utils.Tensor("length", lengths), pb_utils.Tensor("letters", letters)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

_CONFIG = """
backend: "python"
max_batch_size: {size}
input {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }}
parameters {{ key: "behaviour" value {{ string_value: "{behaviour}" }} }}
{more}
"""

_TEXT_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "length" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "letters" data_type: TYPE_INT64 dims: [ -1 ] }
"""

_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step { model_name: "steady" model_version: -1
         input_map { key: "x" value: "x" } output_map { key: "y" value: "middle" } }
  step { model_name: "random" model_version: -1
         input_map { key: "x" value: "middle" } output_map { key: "y" value: "y" } }
}
"""

_DYNAMIC = "dynamic_batching { }"
_BEHAVIOURS = {
    "steady": (8, _DYNAMIC),
    "mixed": (8, _DYNAMIC),
    "crowded": (8, "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"),
    "fresh": (8, ""),
    "random": (8, ""),
    "nan": (0, ""),
    "flaky": (0, ""),
    "late": (0, ""),
    "wide": (8, ""),
    "longer": (8, ""),
    "unloadable": (0, ""),
}


@pytest.fixture(scope="module")
def server(
    embedded_server: Callable[..., EmbeddedServer], tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedServer:
    repository = tmp_path_factory.mktemp("probe") / "repository"
    for name, (size, more) in _BEHAVIOURS.items():
        _write_model(repository / name, _CONFIG.format(size=size, behaviour=name, more=more), _MODEL)
    _write_model(repository / "text", _TEXT_CONFIG, _TEXT_MODEL)
    (repository / "pipeline" / "1").mkdir(parents=True)
    (repository / "pipeline" / "config.pbtxt").write_text(_ENSEMBLE)
    return embedded_server(repository)


def _write_model(folder: Path, config: str, code: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(code)


@pytest.fixture(autouse=True)
def no_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def probe(server: EmbeddedServer, model: str, *options: str, http: bool = False) -> Result:
    """Run `tt probe` with short steps; further options win."""
    url = server.http_url if http else server.grpc_url
    short = ["--url", url, "--duration", "0.4s", "--warmup", "0.1s", "--concurrency", "1"]
    return CliRunner().invoke(cli, ["probe", model, *short, *options])


def report(server: EmbeddedServer, model: str, *options: str, code: int = 0, http: bool = False) -> Any:
    result = probe(server, model, *options, "--json", http=http)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def write_sample(folder: Path, y: np.ndarray[Any, Any], tolerance: float = 1e-6) -> Path:
    """Write a version folder whose golden input is 2 rows of ones."""
    folder.mkdir(parents=True)
    write_samples(folder, Samples({"x": np.ones((2, 4), np.float32)}, {"y": y}))
    passport = Passport(
        model="steady", kind="torch", variant="", backend="python", created="", tools={}, key={},
        tolerance={"absolute": tolerance, "relative": 0.0},
    )  # fmt: skip
    write_passport(folder, passport)
    return folder


class TestFigures:
    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_latency_is_at_least_the_service_time(self, server: EmbeddedServer, http: bool) -> None:
        found = report(server, "steady", http=http)
        run = found["runs"][0]
        assert found["verdict"] == "pass"
        assert run["schedule"]["concurrency"] == 1
        assert 5.0 <= run["latency_ms"]["p50"]["value"] <= run["latency_ms"]["p99"]["value"]
        assert run["server_us"]["compute_infer"] >= 5000
        assert run["samples"] * 0.005 <= run["measured_s"] + 0.005 * 2
        assert run["batch_sizes"].keys() == {"1"}
        assert "one request in flight" in run["why_not_larger"]

    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_batches_that_the_server_formed_show_at_concurrency_8(
        self, server: EmbeddedServer, http: bool
    ) -> None:
        found = report(server, "steady", "--concurrency", "1,8", http=http)
        one, eight = found["runs"]
        assert max(map(int, eight["batch_sizes"])) >= 2
        assert eight["throughput_per_s"] > one["throughput_per_s"]
        assert eight["server_us"]["queue"] > one["server_us"]["queue"]
        assert eight["answers"]["wrong"] == 0

    def test_batch_size_counts_rows(self, server: EmbeddedServer) -> None:
        run = report(server, "steady", "--batch-size", "4")["runs"][0]
        assert run["batch_sizes"].keys() == {"4"}
        assert run["throughput_per_s"] == pytest.approx(4 * run["samples"] / run["measured_s"], rel=0.2)

    def test_ensemble_shows_its_steps(self, server: EmbeddedServer) -> None:
        found = report(server, "pipeline")
        steps = found["runs"][0]["steps"]
        assert list(steps) == ["steady", "random"]
        assert steps["steady"]["server_us"]["compute_infer"] >= 5000
        assert found["runs"][0]["server_us"]["compute_infer"] >= 5000

    def test_first_request_since_the_load_is_told_apart(self, server: EmbeddedServer) -> None:
        assert report(server, "fresh")["first_request_cold"] is True
        assert report(server, "fresh")["first_request_cold"] is False

    def test_traffic_of_others_is_noted(self, server: EmbeddedServer) -> None:
        done = threading.Event()

        def ask() -> None:
            with TritonClient(server.grpc_url) as client:
                while not done.is_set():
                    client.infer("steady", {"x": np.ones((1, 4), np.float32)})

        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(ask) for _ in range(4)]
            try:
                found = report(server, "steady")
            finally:
                done.set()
            for other in others:
                other.result()
        assert any("other clients" in note for note in found["runs"][0]["notes"])


class TestAnswers:
    def test_golden_sample_that_fits_passes(self, server: EmbeddedServer, tmp_path: Path) -> None:
        passport = write_sample(tmp_path / "1", np.full((2, 4), 2, np.float32))
        found = report(server, "steady", "--passport", str(passport))
        assert found["correctness"]["golden_sample"] == str(passport)
        assert found["payload"]["source"] == "golden sample"
        assert found["correctness"]["problems"] == []

    def test_wrong_outputs_fail(self, server: EmbeddedServer, tmp_path: Path) -> None:
        passport = write_sample(tmp_path / "1", np.full((2, 4), 2.001, np.float32))
        found = report(server, "steady", "--passport", str(passport), code=1)
        assert found["verdict"] == "fail"
        assert "output 'y' differs in" in found["reasons"][0]

    def test_wrong_outputs_within_the_passport_s_tolerance_pass(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        passport = write_sample(tmp_path / "1", np.full((2, 4), 2.001, np.float32), tolerance=0.01)
        assert report(server, "steady", "--passport", str(passport))["verdict"] == "pass"

    def test_sample_is_found_through_the_spec(self, server: EmbeddedServer, tmp_path: Path) -> None:
        write_sample(tmp_path / "built" / "steady" / "1", np.full((2, 4), 3, np.float32))
        (tmp_path / "tt.yaml").write_text(
            "spec: 1\nrepository: built\n"
            "models:\n  steady: {kind: prebuilt, path: old, slo: {require: [p50<1ms]}}\n"
        )
        found = report(server, "steady", code=1)
        assert found["correctness"]["golden_sample"] == str(tmp_path / "built" / "steady" / "1")
        assert [item["text"] for item in found["objectives"]] == ["p50<1ms"]

    def test_sizes_come_from_the_spec_where_no_sample_does(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        """Repository and store hold different samples, and the server is no target's."""
        (tmp_path / "code").mkdir()
        (tmp_path / "tt.yaml").write_text(
            "spec: 1\nrepository: built\nmodels:\n  text:\n    kind: python\n    files: code\n"
            "    batch_dim: batch\n    dims: {batch: [1, 2, 4], words: [1, 6, 64], letters: [1, 9, 99]}\n"
            "    inputs:\n      ids: {dtype: int64, shape: [batch, words]}\n"
            "      text: {dtype: bytes, shape: [batch, 1]}\n"
            "    outputs:\n      length: {dtype: int64, shape: [batch, 1]}\n"
            "      letters: {dtype: int64, shape: [batch, letters]}\n"
            "targets: {prod: {store: store, servers: ['grpc://gpu:8001']}}\n"
        )
        text = np.array([[b"ab"]], dtype=object)
        for place, length in (("built", 3), ("store", 4)):
            (tmp_path / place / "text" / "1").mkdir(parents=True)
            outputs = {"length": np.array([[length]]), "letters": np.array([[97, 98]])}
            samples = Samples({"ids": np.ones((1, 1), np.int64), "text": text}, outputs)
            write_samples(tmp_path / place / "text" / "1", samples)
        found = report(server, "text")
        assert found["payload"]["shapes"]["ids"] == [1, 6]
        assert "hold different samples of 'text' under version 1" in found["correctness"]["no_sample_because"]
        assert report(server, "text", "--dim", "words=7")["payload"]["shapes"]["ids"] == [1, 7]

    def test_sample_of_another_model_is_refused(self, server: EmbeddedServer, tmp_path: Path) -> None:
        passport = write_sample(tmp_path / "1", np.full((2, 4), 2, np.float32))
        result = probe(server, "text", "--dim", "ids_1=3", "--passport", str(passport))
        assert result.exit_code == 1
        assert "model 'text' and the golden sample of" in result.stderr
        assert "input 'text' is missing" in result.stderr

    @pytest.mark.parametrize(
        ("model", "y", "words"),
        [
            ("wide", np.full((2, 4), 2.0), "output 'y' is declared as fp32, the model answered float64"),
            (
                "longer",
                np.full((2, 8), 2, np.float32),
                "output 'y' is declared as [1, 4], the model answered [1, 8]",
            ),
        ],
    )
    def test_answer_other_than_declared_is_told_before_anything_else(
        self, server: EmbeddedServer, tmp_path: Path, model: str, y: Any, words: str
    ) -> None:
        """The sample is the original's own, so it is not the one to blame."""
        found = report(server, model, "--passport", str(write_sample(tmp_path / "1", y)), code=1)
        assert found["reasons"][0] == f"wrong answer: {words}"
        assert found["correctness"]["failed_checks"][0] == "as declared, no NaN or infinity"

    def test_nan_fails_without_a_sample(self, server: EmbeddedServer) -> None:
        found = report(server, "nan", code=1)
        assert found["reasons"] == ["wrong answer: output 'y' has NaN in 1 of 4 elements"]
        assert found["correctness"]["no_sample_because"]
        assert found["correctness"]["failed_checks"] == ["as declared, no NaN or infinity"]

    def test_each_check_is_shown_with_its_outcome(self, server: EmbeddedServer, tmp_path: Path) -> None:
        passport = write_sample(tmp_path / "1", np.full((2, 4), 2.001, np.float32))
        result = probe(server, "steady", "--passport", str(passport))
        (answers,) = (line for line in result.stdout.splitlines() if line.startswith("  answers"))
        assert answers.split("; ") == [
            "  answers   WRONG",
            "passed: the same twice",
            "passed: as declared, no NaN or infinity",
            "FAILED: golden sample (2 rows)",
            "passed: 2 rows alone as in a batch",
        ]

    def test_answers_without_a_sample_are_not_called_right(self, server: EmbeddedServer) -> None:
        lines = probe(server, "steady").stdout.splitlines()
        assert any(line.startswith("  answers   consistent: the same twice") for line in lines)
        assert "answers consistent, not compared with a golden sample" in lines[-1]

    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_answers_mixed_up_between_requests_are_caught(self, server: EmbeddedServer, http: bool) -> None:
        found = report(server, "mixed", "--concurrency", "8", code=1, http=http)
        assert found["correctness"]["problems"] == []  # alone it is right
        assert "wrong answers at concurrency 8" in found["reasons"][0]

    def test_model_that_draws_at_random_is_not_held_against_itself(self, server: EmbeddedServer) -> None:
        found = report(server, "random", "--concurrency", "4")
        assert found["correctness"]["deterministic"] is False
        assert found["verdict"] == "pass"
        answers = found["runs"][0]["answers"]
        compared = f"{answers['checked']} of {answers['differing']} differing answers were compared"
        assert found["runs"][0]["notes"][-1].startswith(compared)
        assert f"{compared} at concurrency 4" in found["reasons"][0]

    def test_request_beyond_all_memory_is_wrong_usage(self, server: EmbeddedServer) -> None:
        result = probe(server, "text", "--dim", "ids_1=999999999")
        assert result.exit_code == 2, result.output
        assert "would take 7.5 GiB, more than the 2.0 GiB that a gRPC message can hold" in result.stderr

    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_bytes_and_dynamic_dimensions(self, server: EmbeddedServer, http: bool) -> None:
        found = report(server, "text", "--dim", "ids_1=7", "--batch-size", "2", http=http)
        assert found["payload"]["shapes"] == {"ids": [2, 7], "text": [2, 1]}
        assert found["verdict"] == "pass"

    def test_sample_whose_rows_were_padded_together_is_held_against_the_whole(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        """Alone the short text gives fewer letters than it gave beside the long one."""
        text = np.array([[b"ab"], [b"abcd"]], dtype=object)
        letters = np.array([[97, 98, 0, 0], [97, 98, 99, 100]])
        outputs = {"length": np.array([[3], [5]]), "letters": letters}
        write_samples(tmp_path, Samples({"ids": np.ones((2, 1), np.int64), "text": text}, outputs))
        assert report(server, "text", "--passport", str(tmp_path))["correctness"]["problems"] == []
        outputs["letters"] = letters + 1
        write_samples(tmp_path, Samples({"ids": np.ones((2, 1), np.int64), "text": text}, outputs))
        found = report(server, "text", "--passport", str(tmp_path), code=1)
        assert found["correctness"]["problems"] == ["output 'letters' differs in 8 of 8 elements"]


class TestVerdicts:
    def test_objective_that_holds_passes(self, server: EmbeddedServer) -> None:
        slo = "p50<1s,error_rate=0,throughput>1/s,queue_mean<1s"
        found = report(server, "steady", "--slo", slo, "--duration", "1s")
        assert [item["outcome"] for item in found["objectives"]] == ["pass"] * 4

    def test_objective_that_is_missed_fails(self, server: EmbeddedServer) -> None:
        found = report(server, "steady", "--slo", "p50<1ms", code=1)
        assert "p50<1ms is missed at concurrency 1" in found["reasons"][0]

    def test_too_few_requests_are_inconclusive(self, server: EmbeddedServer) -> None:
        found = report(server, "steady", "--slo", "p99<1s", code=4)
        assert found["verdict"] == "inconclusive"
        assert "--duration" in found["reasons"][0]

    def test_open_step_is_measured_again_for_longer(self, server: EmbeddedServer) -> None:
        short = ("--duration", "0.01s", "--warmup", "0s", "--slo", "p90<1s", "--json")
        first = json.loads(probe(server, "steady", *short).stdout)
        assert (first["verdict"], first["objectives"][0]["decided_in_s"]) == ("inconclusive", 1)
        again = json.loads(probe(server, "steady", *short, "--extend-to", "5s").stdout)
        assert again["runs"][0]["schedule"]["duration_s"] == 1

    def test_failed_requests_are_counted_by_kind_and_fail(self, server: EmbeddedServer) -> None:
        found = report(server, "flaky", code=1)
        run = found["runs"][0]
        assert run["errors"].keys() == {"internal"}
        assert run["errors"]["internal"] == pytest.approx(run["requests"] / 10, abs=2)
        assert "no objective on error_rate allows for it" in " ".join(found["reasons"])
        assert "every tenth fails" in " ".join(found["reasons"])

    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_requests_that_a_full_queue_turns_away_are_counted(
        self, server: EmbeddedServer, http: bool
    ) -> None:
        found = report(server, "crowded", "--concurrency", "16", code=1, http=http)
        assert found["runs"][0]["errors"]["unavailable"] > 0
        assert "Exceeds maximum queue size" in found["runs"][0]["error_texts"]["unavailable"]

    def test_error_rate_objective_allows_for_failures(self, server: EmbeddedServer) -> None:
        assert report(server, "flaky", "--slo", "error_rate<50%", http=True)["verdict"] == "pass"

    def test_requests_that_are_late_count_as_timeouts(self, server: EmbeddedServer) -> None:
        result = probe(server, "late", "--timeout", "0.2s")
        assert result.exit_code == 3
        assert "no answer within 0.2 s to: run model 'late'" in result.stderr

    def test_slow_model_has_a_sample_in_a_short_window(self, server: EmbeddedServer) -> None:
        run = report(server, "late", "--duration", "0.1s", "--warmup", "0s")["runs"][0]
        assert run["samples"] >= 1
        assert run["latency_ms"]["p50"]["value"] >= 500


class TestBadInput:
    def test_unknown_model_offers_a_near_name(self, server: EmbeddedServer) -> None:
        result = probe(server, "stedy")
        assert result.exit_code == 2
        assert "no model 'stedy'; did you mean 'steady'?" in result.stderr

    def test_unknown_version_names_those_there_are(self, server: EmbeddedServer) -> None:
        result = probe(server, "steady", "--model-version", "7")
        assert result.exit_code == 2
        assert "no version 7 ready" in result.stderr
        assert "versions that are ready: 1" in result.stderr

    @pytest.mark.parametrize("http", [False, True], ids=["grpc", "http"])
    def test_model_that_is_not_ready_names_the_server_s_reason(
        self, server: EmbeddedServer, http: bool
    ) -> None:
        result = probe(server, "unloadable", http=http)
        assert result.exit_code == 3
        assert "not ready" in result.stderr

    def test_dynamic_dimension_without_a_size_is_named(self, server: EmbeddedServer) -> None:
        result = probe(server, "text")
        assert result.exit_code == 2
        assert "dimension 'ids_1' (axis 1) is dynamic" in result.stderr
        assert "--dim ids_1=128" in result.stderr
        assert "--shape ids:128" in result.stderr

    @pytest.mark.parametrize("option", [("--dim", "ids_1=128"), ("--shape", "ids:128")])
    def test_suggested_options_work(self, server: EmbeddedServer, option: tuple[str, str]) -> None:
        assert report(server, "text", *option)["payload"]["shapes"]["ids"] == [1, 128]

    def test_batch_size_above_the_model_s_is_refused(self, server: EmbeddedServer) -> None:
        result = probe(server, "steady", "--batch-size", "9")
        assert result.exit_code == 2
        assert "its max_batch_size is 8" in result.stderr


def test_table_ends_with_the_verdict(server: EmbeddedServer) -> None:
    result = probe(server, "steady", "--concurrency", "1,8")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[-1].startswith("PASS  steady")


def test_output_saves_the_report(server: EmbeddedServer, tmp_path: Path) -> None:
    result = probe(server, "steady", "--json", "--output", str(tmp_path / "probe.json"))
    assert json.loads((tmp_path / "probe.json").read_text()) == json.loads(result.stdout)


@pytest.fixture(scope="module")
def mortal(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("replaced") / "repository"
    shutil.copytree(server.options.repository / "steady", repository / "steady")
    with EmbeddedServer(ServeOptions(repository=repository, exit_timeout_s=0)) as mortal:
        yield mortal


class TestReplacedModel:
    """The model is deployed anew, or taken away, while it is under load."""

    def during_the_load(self, server: EmbeddedServer, act: Callable[[TritonClient], None]) -> Future[None]:
        """Act once the model has answered so many requests that the load must be on."""

        def wait_and_act() -> None:
            with TritonClient(server.grpc_url) as client:
                start = client.statistics("steady").success.count
                while client.statistics("steady").success.count < start + 100:
                    time.sleep(0.05)
                act(client)

        pool = ThreadPoolExecutor(1)
        done = pool.submit(wait_and_act)
        pool.shutdown(wait=False)
        return done

    def test_new_version_keeps_the_latencies_and_drops_the_server_s_figures(
        self, mortal: EmbeddedServer
    ) -> None:
        model = mortal.options.repository / "steady"

        def deploy(client: TritonClient) -> None:
            (model / "2").mkdir()
            code = (model / "1" / "model.py").read_text()
            (model / "2" / "model.py").write_text(code.replace("y = x * 2", "y = x * 3"))
            client.load("steady")

        done = self.during_the_load(mortal, deploy)
        found = report(
            mortal, "steady", "--duration", "4s", "--concurrency", "2,1", "--slo", "error_rate<50%"
        )
        done.result()
        first, second = found["runs"]
        assert first["samples"] > 100
        assert first["latency_ms"]["p50"]["value"] >= 5
        assert first["server_us"]["queue"] is None
        assert "(version 1, then 2): the server's counters began anew" in " ".join(first["notes"])
        assert "version 2 answered instead of 1" in " ".join(first["notes"])
        assert second["server_us"]["compute_infer"] >= 5000

    def test_unloaded_model_counts_failed_requests(self, mortal: EmbeddedServer) -> None:
        done = self.during_the_load(mortal, lambda client: client.unload("steady"))
        found = report(mortal, "steady", "--duration", "2s", code=1)
        done.result()
        with TritonClient(mortal.grpc_url) as client:
            client.load("steady")  # the tests may run in any order
        run = found["runs"][0]
        assert run["samples"] > 50
        assert sum(run["errors"].values()) > 0
        assert "no objective on error_rate allows for it" in found["reasons"][0]
        assert "the server did not have the model when its counters were read" in " ".join(run["notes"])


class TestInterruption:
    def start(self, server: EmbeddedServer, *options: str) -> subprocess.Popen[str]:
        """Start a long probe in a process of its own and return when its load has begun."""
        command = [sys.executable, "-m", "triton_toolkit", "probe", "steady", "--url", server.grpc_url]
        command += [
            "--duration",
            "60s",
            "--warmup",
            "0s",
            "--concurrency",
            "4",
            "--timeout",
            "0.5s",
            *options,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "concurrency 4" in line:
                break
        return process

    def test_ctrl_c_ends_it_at_once_with_130(self, server: EmbeddedServer) -> None:
        process = self.start(server, "--json")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
        assert (process.returncode, stdout, stderr) == (130, "", "Interrupted.\n")

    def test_server_that_stops_answering_is_3(self, server: EmbeddedServer) -> None:
        """It hangs during the load: each call has a deadline, so the probe ends and says so."""
        process = self.start(server, "--duration", "0.5s")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            _, stderr = process.communicate(timeout=20)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert process.returncode == 3
        assert "the server was lost during the load at concurrency 4" in stderr

    def test_server_that_dies_is_3(self, server: EmbeddedServer, tmp_path: Path) -> None:
        steady = server.options.repository / "steady"
        shutil.copytree(steady, tmp_path / "repository" / "steady")
        with EmbeddedServer(ServeOptions(repository=tmp_path / "repository")) as mortal:
            process = self.start(mortal)
            os.kill(mortal.pid, signal.SIGKILL)
            _, stderr = process.communicate(timeout=20)
        assert process.returncode == 3
        assert "the server was lost during the load at concurrency 4" in stderr


_FREE_KEYS = {"batch_sizes", "errors", "error_texts", "failures", "shapes"}
_DOCS = Path(__file__).parents[2] / "docs" / "probe.md"


def key_paths(value: Any, path: str = "") -> set[str]:
    """Return every key of a JSON value with the keys above it; list items count as one."""
    if isinstance(value, list):
        return {found for item in value for found in key_paths(item, path + "[]")}
    if not isinstance(value, dict):
        return {path}
    if path.rpartition(".")[2] in _FREE_KEYS:
        return {path}
    return {found for key, item in value.items() for found in key_paths(item, f"{path}.{key}")}


def test_documented_example_has_the_keys_of_a_report(server: EmbeddedServer, tmp_path: Path) -> None:
    passport = write_sample(tmp_path / "1", np.full((2, 4), 2, np.float32))
    options = ("--passport", str(passport), "--slo", "p50<1s")
    found = report(server, "steady", *options)
    documented = json.loads(_DOCS.read_text().partition("```json\n")[2].partition("```")[0])
    found["runs"][0]["latency_ms"].pop("p99.9", None)
    found["runs"][0]["notes"] = documented["runs"][0]["notes"] = []  # there may be none
    assert key_paths(documented) == key_paths(found)


def test_documented_options_are_those_of_the_command() -> None:
    from triton_toolkit.cli.probe import command

    table = _DOCS.read_text().partition("## Options")[2].partition("## JSON")[0]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert {name for name in options if f"`{name}" not in table} == {"--spec", "--help"} & options
