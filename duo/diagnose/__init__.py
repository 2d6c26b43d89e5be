"""What looks at a machine or a run: hardware, what decodes cost, whether drafts change a text, where time went."""
