"""Chats: templates, prompts and answers, for the command line and the server."""
