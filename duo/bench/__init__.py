"""Measuring duo beside plain runs and other programs: runs in turns, what they come to, tables and plots."""
