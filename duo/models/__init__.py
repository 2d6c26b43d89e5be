"""Where GGUF files come from: a path, the Hugging Face hub, or the demo pair that duo makes itself."""
