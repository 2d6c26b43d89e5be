"""The options of the commands, besides those of the configs."""
