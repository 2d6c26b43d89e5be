"""The proof that the text is the target's own: the whole loop over a model whose every sequence has a known chance."""
