"""The release table: complete, ordered, graded, and true for what is installed here."""

from __future__ import annotations

import itertools
import re
from importlib import metadata

import onnxruntime
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from triton_toolkit.core import releases
from triton_toolkit.errors import UsageError


def test_the_table_holds_every_month_in_order():
    found = [release.container for release in releases.releases()]
    months = [f"{year}.{month:02}" for year in range(22, 27) for month in range(1, 13)]
    assert found == months[: months.index("26.09") + 1]


def test_the_embedded_servers_release():
    found = releases.release("24.10")
    assert (found.triton, found.onnxruntime, found.cuda, found.driver, found.python) == (
        "2.51.0", "1.19.2", "12.6.2", "560", "3.10",
    )  # fmt: skip
    assert (found.opset, found.ir_version, found.compute_capability) == (21, 10, "6.0")
    assert found.tensorrt == releases.Graded("10.5.0.18", "A", "")


def test_a_second_hand_value_names_its_source():
    assert releases.release("24.02").tensorrt == releases.Graded(
        "8.6.3", "B", "model_navigator, same-tag framework image"
    )


def test_unknown_is_a_value():
    found = releases.release("26.07")
    assert found.tensorrt == releases.Graded(None, "", "")
    assert found.cuda is None


def test_where_two_sources_disagree_the_note_says_so():
    assert "compatibility.md says 1.18.1" in releases.release("24.08").note


def test_a_value_is_graded_where_it_is_known():
    for release in releases.releases():
        value, grade, source = release.tensorrt
        assert (value is None) == (grade == ""), release.container
        assert grade in ("", "A", "B", "W"), release.container
        assert grade != "B" or source, release.container


def test_no_cell_is_empty_or_holds_a_stray_word():
    for release in releases.releases():
        words = (release.triton, release.onnxruntime, release.cuda, release.driver, release.python)
        assert all(re.fullmatch(r"\d[\d.]*(dev)?", word) for word in words if word is not None), release


def test_only_the_last_row_was_not_released():
    assert [release.container for release in releases.releases() if not release.is_released] == ["26.09"]


def test_versions_never_go_back():
    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.removesuffix("dev").split(".")]

    table = releases.releases()
    for older, newer in itertools.pairwise(table):
        assert numbers(older.triton) < numbers(newer.triton)
        assert numbers(older.onnxruntime or "0") <= numbers(newer.onnxruntime or "99")
        assert (older.opset or 0) <= (newer.opset or 99)
        assert (older.ir_version or 0) <= (newer.ir_version or 99)


def test_every_known_onnxruntime_has_limits():
    assert [r.container for r in releases.releases() if r.onnxruntime and r.opset is None] == []


def test_by_triton_version_finds_the_container():
    assert releases.by_triton_version("2.51.0") == releases.release("24.10")
    assert releases.by_triton_version("9.9.9") is None


@pytest.mark.parametrize(
    ("tag", "hint"), [("24.13", "24.10, 24.11, 24.12"), ("2024-10", "22.10, 24.10"), ("", "year and month")]
)
def test_an_unknown_release_offers_near_ones(tag, hint):
    with pytest.raises(UsageError, match=r"from 22\.01 to 26\.09") as caught:
        releases.release(tag)
    assert hint in caught.value.hint


def test_at_most_takes_the_last_known_one_for_a_newer_tag():
    assert releases.at_most("27.03").container == "26.09"


@pytest.mark.parametrize("tag", ["24.13", "24.00", "latest", "21.12", "24.1"])
def test_at_most_refuses_what_is_no_release_or_too_old(tag):
    with pytest.raises(UsageError, match="no Triton release"):
        releases.at_most(tag)


@pytest.mark.parametrize(
    ("tag", "opset", "ir_version"),
    [
        (None, 21, 10),
        ("22.01", 15, 8),
        ("23.03", 18, 8),
        ("25.08", 23, 11),
        ("26.08", 26, 13),
        ("27.01", 26, 13),
    ],
)
def test_export_targets(tag, opset, ir_version):
    assert releases.export_target(tag) == (opset, ir_version)


def test_a_patch_release_that_the_table_lacks_is_as_its_minor_version():
    assert releases.onnxruntime_limits("1.20.0") == releases.onnxruntime_limits("1.20.1") == (21, 10, 5)


def test_an_unknown_onnxruntime_has_unknown_limits():
    assert releases.onnxruntime_limits("1.99.0") == (None, None, None)


@pytest.mark.parametrize(
    ("column", "domain"), [("opset", ""), ("ml_opset", "ai.onnx.ml"), ("ir_version", None)]
)
def test_the_installed_onnxruntime_loads_just_what_the_table_says(column, domain):
    """The way in which the table was measured, repeated on the version that is here."""
    limits = releases.onnxruntime_limits(metadata.version("onnxruntime"))
    highest = getattr(limits, column)
    if highest is None:
        pytest.skip("the table does not know this version of onnxruntime")
    assert _loads(domain, highest)
    assert not _loads(domain, highest + 1)


def _loads(domain: str | None, version: int) -> bool:
    opsets = {"": 13} | ({domain: version} if domain is not None else {})
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(name, number) for name, number in opsets.items()],
        ir_version=version if domain is None else 8,
    )
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        return False
    return True


def test_features_are_of_known_releases_in_order():
    tags = [release.container for release in releases.releases()]
    assert {feature.first for feature in releases.features()} <= set(tags)
    assert {feature.kind for feature in releases.features()} == {"config", "flag", "behaviour"}


def test_a_feature_is_there_from_its_first_release_on():
    assert not releases.has_feature("24.10", "model_metrics")
    assert releases.has_feature("24.11", "model_metrics")
    assert releases.has_feature("26.01", "model_metrics")


def test_the_minimum_compute_capability_follows_its_feature():
    for release in releases.releases():
        raised = releases.has_feature(release.container, "compute-capability-7.5")
        assert release.compute_capability == ("7.5" if raised else "6.0")


@pytest.mark.parametrize(
    "name", [f.name for f in releases.features() if f.kind == "config" and not f.name.startswith("TYPE_")]
)
def test_a_config_feature_is_a_field_of_the_protobuf(name):
    message = model_config_pb2.ModelConfig.DESCRIPTOR
    for part in name.split("."):
        field = message.fields_by_name[part]
        message = field.message_type


def test_flags_look_like_flags():
    flags = [feature.name for feature in releases.features() if feature.kind == "flag"]
    assert flags
    assert all(re.fullmatch(r"--[a-z-]+", flag) for flag in flags)
