"""Output: messages, the text, --live, the report; and Ctrl-C."""
