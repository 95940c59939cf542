"""``pytest tests/golden --update-golden`` writes what is rendered now; look at the diff before committing."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option; pytest sees it where this folder is named on the command line."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected configs")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite the expected texts instead of comparing."""
    return bool(request.config.getoption("--update-golden", default=False))
