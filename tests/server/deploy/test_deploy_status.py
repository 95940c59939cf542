"""What ``tt status`` tells of a target, and the two commands as users run them."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from triton_toolkit._files import sha256_bytes
from triton_toolkit.cli import cli
from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.deploy.status import read_status
from triton_toolkit.errors import EXIT_ENVIRONMENT, EXIT_NO, EXIT_OK, EXIT_USAGE, EnvironmentProblem
from triton_toolkit.repository.passport import MISSING
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server


def _model(workshop, short: str = "m", **options):
    status = read_status(workshop.project(), "local", **options)
    return next(model for model in status.models if model.name == workshop.name(short))


def test_deployed_model_has_no_drift(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    model = _model(workshop, verify=True)
    assert (model.serving, model.built, model.drift) == ((1,), 1, ())
    assert [version.passport.tools for version in model.versions] == [{"tt": "test"}]


def test_rebuilt_model_has_drifted(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22)
    assert _model(workshop).drift == (
        "version 1 on the target is not what is built (version 2)",
        "config.pbtxt on the target is not the one that is built",
    )


def test_model_that_is_not_deployed_or_not_built(workshop):
    workshop.build("m", 1, marker=11)
    assert _model(workshop).drift == ("not deployed",)
    workshop.forget("m")
    assert "is not built" in _model(workshop).drift[0]


def test_unloaded_model_is_not_served(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    with workshop.client() as client:
        client.unload(workshop.name("m"))
    model = _model(workshop)
    assert (model.serving, model.drift) == ((), ("version 1 is not served",))


def test_config_changed_behind_the_servers_back(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    config = workshop.store / workshop.name("m") / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    assert "the server runs another config: max_batch_size is 8, not 4" in _model(workshop).drift


def test_damaged_file_on_the_target_is_found_when_asked(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    (workshop.store / workshop.name("m") / "1" / "samples.npz").write_bytes(b"rot")
    assert _model(workshop).drift == ()
    assert "samples.npz is not the file that was built" in _model(workshop, verify=True).drift[0]


def test_model_of_somebody_else_is_listed(workshop):
    workshop.build("m", 1, marker=11)
    status = read_status(workshop.project(), "local")
    engine = next(model for model in status.models if model.name == "engine")
    assert (engine.serving, engine.drift) == ((1,), ("not in the spec",))


def test_fitting_store_is_no_mismatch(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    assert read_status(workshop.project(), "local").mismatch == ""


def test_store_whose_models_the_server_does_not_list(workshop, tmp_path):
    (tmp_path / "other" / "elsewhere").mkdir(parents=True)
    workshop.build("m", 1, marker=11)
    workshop.target["store"] = str(tmp_path / "other")
    status = read_status(workshop.project(), "local")
    assert status.mismatch == "it does not list elsewhere, which the store holds"


def test_empty_store_of_a_server_that_serves(workshop, tmp_path, run):
    (tmp_path / "other").mkdir()
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.target["store"] = str(tmp_path / "other")
    result = run("status", "--to", "local")
    assert "this server does not seem to read this store: it serves engine version 1" in result.stdout
    assert f"{workshop.name('m')}: version 1 is served, but the store holds no such model" in result.stdout
    assert "gone" not in result.stdout


def test_lock_and_leftovers_are_told_and_leftovers_removed_by_the_next_deployment(workshop):
    workshop.build("m", 1, marker=11)
    leftover = workshop.store / "tt-candidate-dead-x"
    leftover.mkdir()
    store = LocalStore(workshop.store)
    with store.lock(wait_s=0):
        status = read_status(workshop.project(), "local")
    assert status.lock is not None
    assert status.leftovers == ("tt-candidate-dead-x",)
    report = workshop.deploy("m")
    assert any("tt-candidate-dead-x" in note for note in report.notes)
    assert not leftover.exists()
    assert read_status(workshop.project(), "local").lock is None


def test_store_that_is_not_there(workshop, tmp_path):
    workshop.build("m", 1, marker=11)
    workshop.target["store"] = str(tmp_path / "nowhere")
    with pytest.raises(EnvironmentProblem, match="no such folder"):
        read_status(workshop.project(), "local")


@pytest.fixture
def run(workshop, monkeypatch):
    """Run ``tt`` in the workshop's folder."""

    def invoke(*arguments: str):
        workshop.project()
        monkeypatch.chdir(workshop.root)
        return CliRunner().invoke(cli, arguments)

    return invoke


def test_deploy_command_prints_a_table_and_the_verdict(workshop, run):
    workshop.build("m", 1, marker=11)
    result = run("deploy", workshop.name("m"), "--to", "local", "--no-rehearsal")
    assert result.exit_code == EXIT_OK, result.stderr
    assert workshop.name("m") in result.stdout
    assert "2 outputs match" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("PASS  deployed to local")
    assert "publish the config" in result.stderr


def test_deploy_command_with_json_prints_json_alone(workshop, run):
    workshop.build("m", 1, marker=11)
    result = run("deploy", "--to", "local", "--no-rehearsal", "--json")
    value = json.loads(result.stdout)
    assert (value["verdict"], value["models"][0]["version"]) == ("deployed", 1)
    assert {step["outcome"] for step in value["steps"]} == {"done"}
    assert value["models"][0]["golden"][0]["problem"] == ""


def test_deploy_command_dry_run(workshop, run):
    workshop.build("m", 1, marker=11)
    result = run("deploy", "--to", "local", "--dry-run")
    assert result.exit_code == EXIT_OK
    assert f"would call: load {workshop.name('m')}\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("nothing written to local")
    assert workshop.serving("m") == []


def test_deploy_command_that_is_refused_exits_1(workshop, run):
    workshop.build("m", 1, marker=11, answer="triple")
    result = run("deploy", "--to", "local", "--no-rehearsal", "--json")
    assert result.exit_code == EXIT_NO
    assert json.loads(result.stdout)["error"] == "DeployError"
    assert "y differs in 3 of 3 elements" in result.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("deploy", EXIT_USAGE),
        ("deploy --to nowhere", EXIT_USAGE),
        ("deploy nothing --to local", EXIT_USAGE),
        ("deploy --to local --load-timeout soon", EXIT_USAGE),
        ("deploy --to local --load-timeout 0s", EXIT_USAGE),
        ("deploy --to local --load-timeout 1e300s", EXIT_USAGE),
        ("status --to nowhere", EXIT_USAGE),
        ("deploy --to down", EXIT_ENVIRONMENT),
        ("status --to down", EXIT_ENVIRONMENT),
    ],
)
def test_exit_codes(workshop, monkeypatch, line, code):
    workshop.build("m", 1, marker=11)
    workshop.project()
    spec = workshop.root / "tt.yaml"
    down = f"  down: {{store: {workshop.store}, servers: ['grpc://127.0.0.1:1']}}\n"
    spec.write_text(spec.read_text().replace("targets:\n", f"targets:\n{down}"))
    monkeypatch.chdir(workshop.root)
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""


def test_status_command(workshop, run):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22)
    text, value = run("status", "--to", "local"), json.loads(run("status", "--to", "local", "--json").stdout)
    assert f"{workshop.name('m')}: version 1 on the target is not what is built (version 2)" in text.stdout
    model = value["models"][workshop.name("m")]
    assert (model["versions"]["1"]["state"], model["serving"], model["built"]) == ("READY", [1], 2)
    assert model["versions"]["1"]["passport"]["created"] == "2026-01-01T00:00:00+00:00"
    assert value["deployments"][-1]["verdict"] == "deployed"


@pytest.mark.parametrize("command", ["deploy", "status"])
def test_missing_target_lists_those_of_the_spec(workshop, run, command):
    workshop.build("m", 1, marker=11)
    result = run(command)
    assert result.exit_code == EXIT_USAGE
    assert "Missing option '--to'. Targets of the spec: local" in result.stderr


def test_status_with_verify_says_that_all_is_well(workshop, run):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    result = run("status", "--to", "local", "--verify")
    assert "all files are as built (1 version hashed)" in result.stdout
    assert "not deployed by tt, so not checked: 1" in result.stdout  # the engine
    (workshop.store / workshop.name("m") / "1" / "samples.npz").write_bytes(b"rot")
    assert "all files are as built" not in run("status", "--to", "local", "--verify").stdout


def test_what_is_not_deployed_is_one_line(workshop, run):
    for name in ("m", "n", "o"):
        workshop.build(name, 1, marker=11)
    workshop.deploy("o")
    lines = run("status", "--to", "local").stdout.splitlines()
    assert [line for line in lines if "not deployed" in line] == [
        f"not deployed: {workshop.name('m')}, {workshop.name('n')}"
    ]


def test_status_of_an_empty_store_says_what_to_do(workshop, tmp_path, run):
    (tmp_path / "empty").mkdir()
    workshop.build("m", 1, marker=11)
    workshop.target["store"] = str(tmp_path / "empty")
    with EmbeddedServer(ServeOptions(repository=tmp_path / "empty", load=())) as server:
        workshop.url = server.grpc_url
        result = run("status", "--to", "local")
    assert "no models; tt deploy --to local" in result.stdout
    assert "reason" not in result.stdout


def test_sources_that_changed_since_the_build_are_told_by_both_commands(workshop):
    for name in ("same.py", "changed.py", "new.py"):
        (workshop.root / name).write_text("x = 1\n")
    sha = sha256_bytes(b"x = 1\n")
    dependencies = {"same.py": sha, "changed.py": sha, "gone.py": sha, "new.py": MISSING, "no.py": MISSING}
    workshop.build("m", 3, marker=11, dependencies=dependencies)
    (workshop.root / "changed.py").write_text("x = 2\n")
    text = (
        "changed.py changed, gone.py is gone, new.py is new since version 3 was built; "
        f"run `tt build {workshop.name('m')}`"
    )
    assert _model(workshop).drift == (text, "not deployed")
    assert f"{workshop.name('m')}: {text}" in workshop.deploy("m").notes
    assert _model(workshop).drift == (text,)


@pytest.mark.parametrize("config", [b"max_batch: 1", b'name: "\xff"'], ids=["unparsable", "not-utf-8"])
def test_a_damaged_bystander_is_a_line_of_status_and_no_obstacle_to_deploy(workshop, config, request):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    bystander = workshop.store / workshop.name("bystander")
    request.addfinalizer(lambda: shutil.rmtree(bystander))
    (bystander / "1").mkdir(parents=True)
    (bystander / "config.pbtxt").write_bytes(config)
    (bystander / "1/passport.json").write_text("{")
    models = {model.name: model for model in read_status(workshop.project(), "local").models}
    assert any("config.pbtxt" in line for line in models[workshop.name("bystander")].drift)
    assert any("passport" in line for line in models[workshop.name("bystander")].drift)
    assert models[workshop.name("m")].drift == ()
    workshop.build("m", 2, marker=22)
    assert workshop.deploy("m").verdict == "deployed"
