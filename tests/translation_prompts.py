"""Forty prompts in several scripts, raw: what vocabularies spell differently."""

from __future__ import annotations

PROMPTS = (
    # Latin
    "Once upon a time there was a", "The three primary colours are", "Dear Sir or Madam,\n\n",
    "Où est la bibliothèque ?",
    "Der schnellste Weg nach Köln ist", "El perro y el gato", "Ein Gedicht über den Herbst:\n\n", "Zażółć gęślą jaźń",
    "Thế giới này", "She said: “Don't", "A list:\n- one\n-", "12 + 30 = 42\n17 + 25 =",
    # Cyrillic, Greek, Hebrew, Arabic, Devanagari, Thai
    "Однажды в студёную зимнюю пору", "Жили-были старик со старухой", "Столица России —", "Привіт, як справи?",
    "Η πρωτεύουσα της Ελλάδας είναι", "שלום, מה", "مرحبا، كيف", "كان يا ما كان", "عاصمة مصر هي", "नमस्ते, आप", "สวัสดี",
    # Chinese, Japanese, Korean
    "从前有一座山，", "中国的首都是", "昔々、ある所に", "日本の首都は", "안녕하세요, 저는",
    # Emoji
    "🙂🎉🚀 means", "I ❤️ you 👩‍👩‍👧 and", "Rate it: ⭐⭐⭐", "🇫🇷 🇩🇪 🇮🇹",
    # Code
    "def fibonacci(n):\n    ", "#include <stdio.h>\n\nint main(void) {\n\t",
    '{"name": "Ada", "born": 1815, "languages": [',
    "<!doctype html>\n<html>\n<head>\n<title>", "SELECT name, COUNT(*)\n  FROM", "let x = [1,2,3].map(",
    "\\begin{equation}\n", "$ ls -la | grep",
)  # fmt: skip
