"""The command line: reads options, builds configs, calls one thing below, shows the result."""
