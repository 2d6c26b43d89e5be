"""What attacks on the link share with its tests."""

from tests.unit.link.conftest import stage

__all__ = ["stage"]
