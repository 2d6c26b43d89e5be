"""duo: speculative decoding with the draft and the target running at the same time."""

__version__ = "0.1.0"
