"""Threads: everything that waits lives here."""
