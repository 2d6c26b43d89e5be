"""The only rooms that import llama_cpp."""
