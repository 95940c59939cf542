"""What differs from a git commit, whatever the state it is in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from triton_toolkit.build.checkout import Checkout
from triton_toolkit.errors import EnvironmentProblem, UsageError


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project in a folder of a checkout, with one commit on main."""
    root = tmp_path / "checkout" / "project"
    (root / "nets/deep").mkdir(parents=True)
    (root / "nets/a.py").write_text("a")
    (root / "nets/deep/b.py").write_text("b")
    (root / "größe.txt").write_text("ü")
    (root.parent / "outside.txt").write_text("o")
    git(root.parent, "init", "-q", "-b", "main")
    git(root.parent, "add", ".")
    git(root.parent, "commit", "-q", "-m", "first")
    return root


def test_nothing_differs_at_first(root: Path) -> None:
    checkout = Checkout(root, "main")
    assert sorted(checkout.names()) == ["größe.txt", "nets/a.py", "nets/deep/b.py"]
    assert not any(checkout.differs(name) for name in checkout.names())
    assert checkout.differing_below("nets") is None


@pytest.mark.parametrize("state", ["edited", "staged", "committed", "removed", "staged removal"])
def test_a_change_in_every_state_differs(root: Path, state: str) -> None:
    git(root, "checkout", "-q", "-b", "work")
    (root / "nets/deep/b.py").write_text("changed")
    if state == "staged":
        git(root, "add", "nets")
    if state == "committed":
        git(root, "commit", "-q", "-a", "-m", "second")
    if state == "removed":
        (root / "nets/deep/b.py").unlink()
    if state == "staged removal":
        git(root, "rm", "-q", "-f", "nets/deep/b.py")
    checkout = Checkout(root, "main")
    assert checkout.differs("nets/deep/b.py")
    assert not checkout.differs("nets/a.py")
    assert checkout.differing_below("nets") == "nets/deep/b.py"
    assert checkout.differing_below("nets/") == "nets/deep/b.py"
    assert checkout.differing_below(".") == "nets/deep/b.py"


def test_untracked_and_ignored_files_differ(root: Path) -> None:
    (root / "nets/new.py").write_text("n")
    (root / "weights.pt").write_text("w")
    (root / ".gitignore").write_text("weights.pt\n")
    checkout = Checkout(root, "main")
    assert checkout.differs("nets/new.py")
    assert checkout.differs("weights.pt")
    assert checkout.differing_below("nets") == "nets/new.py"


def test_a_file_that_is_neither_there_nor_in_the_commit_does_not_differ(root: Path) -> None:
    assert not Checkout(root, "main").differs("nets/override.py")
    (root / "nets/override.py").write_text("")
    assert Checkout(root, "main").differs("nets/override.py")


def test_what_is_never_taken_along_does_not_count(root: Path) -> None:
    (root / "nets/__pycache__").mkdir()
    (root / "nets/__pycache__/a.pyc").write_text("n")
    (root / "nets/.cache").write_text("n")
    assert Checkout(root, "main").differing_below("nets") is None


def test_a_link_differs_since_git_does_not_know_the_bytes_behind_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_text("1")
    (root / "weights.bin").symlink_to(tmp_path / "big.bin")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "link")
    assert Checkout(root, "main").differs("weights.bin")


def test_bytes_are_those_of_the_commit(root: Path) -> None:
    (root / "nets/a.py").write_text("changed")
    read = Checkout(root, "HEAD").read(["nets/a.py", "größe.txt"])
    assert read == {"nets/a.py": b"a", "größe.txt": "ü".encode()}
    assert Checkout(root, "HEAD").read([]) == {}


@pytest.mark.parametrize("ref", ["origin/main", "v9", "--output=x", "", "HEAD:nets"])
def test_an_unknown_commit_is_wrong_usage(root: Path, ref: str) -> None:
    with pytest.raises(UsageError, match=r"git knows no|is not a branch"):
        Checkout(root, ref)


def test_a_commit_outside_a_shallow_clone_says_so(root: Path, tmp_path: Path) -> None:
    (root / "nets/a.py").write_text("second")
    git(root, "commit", "-q", "-a", "-m", "second")
    git(root, "tag", "later")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", root.parent.as_uri(), str(clone))
    with pytest.raises(EnvironmentProblem, match="HEAD~1 is not in this shallow clone"):
        Checkout(clone / "project", "HEAD~1")
    assert not Checkout(clone / "project", "HEAD").differs("nets/a.py")


def test_a_folder_that_is_no_checkout_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="is not in a git checkout"):
        Checkout(tmp_path, "main")


def test_without_git_it_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentProblem, match="git is not installed"):
        Checkout(root, "main")
