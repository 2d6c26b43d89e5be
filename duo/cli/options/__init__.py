"""The options of all commands, in groups that build their own configs; each is written once."""
