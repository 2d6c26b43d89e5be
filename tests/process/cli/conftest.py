"""Fixtures of the unit tests."""

from __future__ import annotations

from tests.unit.cli.conftest import kin, tiny

__all__ = ["kin", "tiny"]
