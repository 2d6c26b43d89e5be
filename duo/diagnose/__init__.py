"""Inspection of a machine or a run: hardware, costs, identity of texts, traces."""
