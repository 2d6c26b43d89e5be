"""What the user sees: lines, the text, --live, the report, and Ctrl-C."""
