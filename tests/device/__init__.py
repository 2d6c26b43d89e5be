"""Tests on a GPU device: a real card, or Mesa's software driver. `make test-vulkan` builds llama.cpp for it."""
