"""Built-in prompts: a story, a program, an explanation, a letter and a list."""

PROMPTS = (
    "The old lighthouse keeper had not seen a ship for three weeks. On the first clear morning he",
    'def median(values):\n    """The middle of the sorted values; the mean of the two middle ones."""\n',
    "Question: Why does bread rise in the oven, and what happens if it is left there too long?\nAnswer:",
    "Dear neighbours,\n\nthe bridge over the mill stream will be closed from Monday on, because",
    "Ten things to do on a rainy Sunday:\n1.",
)
