"""The lead: an OpenAI-compatible HTTP server over one engine."""
