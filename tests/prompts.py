"""Prompts of different kinds and in several scripts, raw, as a user might give them."""

_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_PARAGRAPH = (
    "The harbour master kept two clocks. One told the hour of the town and one the hour of the tide, and whoever "
    "asked him for the time was first asked what for. "
)

PROMPTS = {
    "chat": _CHAT.format("Why is the sky red in the evening?"),
    "code": "def fibonacci(n):\n    ",
    "c code": "#include <stdio.h>\n\nint main(void) {\n",
    "json": '{"name": "Ada", "born": 1815, "languages": [',
    "html": "<!doctype html>\n<html>\n<head>\n<title>",
    "story": "Once upon a time there was a clock that ran backwards, and",
    "arithmetic": "12 + 30 = 42\n17 + 25 =",
    "german": "Der schnellste Weg von München nach Hamburg ist",
    "japanese": "昔々、ある所に",
    "russian": "Однажды в студёную зимнюю пору",
    "emoji": "🙂🎉🚀 means",
    "one token": "The",
    "long": _PARAGRAPH * 58,
}

# With those of PROMPTS that vocabularies spell differently, too.
SCRIPTS = (
    *(PROMPTS[name] for name in ("code", "c code", "json", "html", "arithmetic", "japanese", "russian", "emoji")),
    # Latin
    "Once upon a time there was a", "The three primary colours are", "Dear Sir or Madam,\n\n",
    "Où est la bibliothèque ?", "Der schnellste Weg nach Köln ist", "El perro y el gato", "Zażółć gęślą jaźń",
    "Ein Gedicht über den Herbst:\n\n", "Thế giới này", "She said: “Don't", "A list:\n- one\n-",
    # Cyrillic, Greek, Hebrew, Arabic, Devanagari, Thai
    "Жили-были старик со старухой", "Столица России —", "Привіт, як справи?", "Η πρωτεύουσα της Ελλάδας είναι",
    "שלום, מה", "مرحبا، كيف", "كان يا ما كان", "عاصمة مصر هي", "नमस्ते, आप", "สวัสดี",
    # Chinese, Japanese, Korean
    "从前有一座山，", "中国的首都是", "日本の首都は", "안녕하세요, 저는",
    # Emoji, code
    "I ❤️ you 👩‍👩‍👧 and", "Rate it: ⭐⭐⭐", "🇫🇷 🇩🇪 🇮🇹",
    "SELECT name, COUNT(*)\n  FROM", "let x = [1,2,3].map(", "\\begin{equation}\n", "$ ls -la | grep",
)  # fmt: skip
