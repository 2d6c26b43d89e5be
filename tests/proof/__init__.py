"""Statistics and exhaustive identity: `make test-slow`."""
