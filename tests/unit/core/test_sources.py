import pytest

from triton_toolkit.core.sources import SourceKind, near_path, source_kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nets:model", SourceKind.CALLABLE),
        ("nets.deep:Zoo.build", SourceKind.CALLABLE),
        ("models/net.pt2", SourceKind.PATH),
        ("net.pt", SourceKind.PATH),
        ("net.ts", SourceKind.PATH),
        ("./bert", SourceKind.PATH),
        ("hf/bert/", SourceKind.PATH),
        ("../shared/net:v2.pt2", SourceKind.PATH),
        ("nets.model", None),
        ("bert", None),
        ("nets:", None),
        (":model", None),
        ("nets:model()", None),
        ("my-nets:model", None),
    ],
)
def test_a_source_is_a_function_or_a_path_and_never_both(text, kind):
    assert source_kind(text) is kind


def test_a_near_name_is_looked_for_in_the_folder(tmp_path):
    (tmp_path / "encoder.pt2").write_text("")
    assert near_path(tmp_path / "enocder.pt2") == "encoder.pt2"
    assert near_path(tmp_path / "else") == ""
    assert near_path(tmp_path / "nowhere" / "encoder.pt2") == ""
