"""The command line: reads options, builds configs, calls one module below and prints the result."""
