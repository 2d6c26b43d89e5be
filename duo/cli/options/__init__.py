"""The options of all commands, in groups that each are written once and build their own config."""
