"""Drafting on another machine."""
