"""Where GGUF files come from: a path, the Hugging Face Hub, or the demo pair. Layer placement; profiles."""
