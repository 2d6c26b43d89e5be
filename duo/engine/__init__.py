"""The engine: generation, drafting, and their threads."""
