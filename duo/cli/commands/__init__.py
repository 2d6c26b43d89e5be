"""One file for each command: it reads its options, calls one thing below, shows the result."""
