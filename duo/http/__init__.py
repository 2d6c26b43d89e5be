"""The listener of HTTP servers: its limits, and who may connect."""
