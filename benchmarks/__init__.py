"""Measures duo beside other programs; see README.md."""
