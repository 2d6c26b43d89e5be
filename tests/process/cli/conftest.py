"""Fixtures of the unit tests."""

from tests.unit.cli.conftest import kin, tiny

__all__ = ["kin", "tiny"]
