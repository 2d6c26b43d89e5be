"""The lead: OpenAI-compatible HTTP over one generation queue."""
