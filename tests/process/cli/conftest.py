"""Fixtures of the unit tests."""

from __future__ import annotations

from tests.unit.cli.conftest import kin, recurrent, set_cores, tiny

__all__ = ["kin", "recurrent", "set_cores", "tiny"]
