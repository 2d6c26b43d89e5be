"""Which small model drafts for which family of targets: those that share a vocabulary, as files on Hugging Face."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Targets that share a vocabulary, and a draft for them."""

    targets: str  # what they are called
    pattern: str  # of their names, in lower case, with - between words
    draft: str  # user/repo[:quant], as for -hf; empty: there is none as GGUF
    note: str = ""  # why there is none

    @property
    def advice(self) -> str:
        """Which draft to use, as a sentence."""
        if not self.draft:
            return f"For {self.targets} there is no draft with the same vocabulary: {self.note}."
        return f"For {self.targets}, a draft with the same vocabulary is {self.draft} on Hugging Face."

    def is_draft(self, name: str) -> bool:
        """Whether a model of this name is the draft of the family, in whatever format."""
        repo = self.draft.partition("/")[2].partition(":")[0]
        return bool(repo) and _plain(repo).removesuffix("gguf").rstrip("-") in _plain(name)


def _plain(name: str) -> str:
    """A name in lower case, with - between words."""
    return re.sub(r"[\s_/:]+", "-", name.lower())


# The first that fits counts. The repositories exist; that the vocabularies are the same is what their authors publish,
# and duo compares them when it loads a pair.
FAMILIES = (
    Family("DeepSeek R1 Distill Llama 70B", r"deepseek-r1-distill-llama",
           "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF"),
    Family("DeepSeek R1 Distill Qwen 7B to 32B", r"deepseek-r1-distill-qwen",
           "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF"),
    Family("Llama 3.1, 3.2, 3.3", r"llama-?3\.[123]", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    Family("Llama 2", r"llama-?2(?![\d.])", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF"),
    Family("Qwen2.5-Coder", r"qwen-?2\.5-coder", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"),
    Family("Qwen2.5", r"qwen-?2\.5", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    Family("Qwen3", r"qwen-?3(?![\d.]|-next)", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
    Family("Gemma 3", r"gemma-?3(?![\dn.])", "ggml-org/gemma-3-270m-it-GGUF:Q8_0"),
    Family("Gemma 2 9B, 27B", r"gemma-?2(?![\d.])", "bartowski/gemma-2-2b-it-GGUF"),
    Family("Ministral 3 8B, 14B", r"ministral-?3", "mistralai/Ministral-3-3B-Instruct-2512-GGUF"),
    Family("Mistral Small 3.1, 3.2", r"mistral-small-3\.[12]|mistral-small-.*(?:2503|2506)",
           "bartowski/alamios_Mistral-Small-3.1-DRAFT-0.5B-GGUF"),
    Family("Phi-4 14B", r"phi-?4(?!-mini)", "", "Phi-4-mini has another vocabulary"),
    Family("SmolLM2 360M, 1.7B", r"smollm-?2", "bartowski/SmolLM2-135M-Instruct-GGUF"),
    Family("Granite 3.3 8B", r"granite-?3\.3", "ibm-granite/granite-3.3-2b-instruct-GGUF"),
    Family("Granite 4.0", r"granite-?4\.0", "ibm-granite/granite-4.0-350m-GGUF"),
    Family("Falcon 3", r"falcon-?3", "bartowski/Falcon3-1B-Instruct-GGUF"),
    Family("OLMo 2", r"olmo-?2", "allenai/OLMo-2-0425-1B-Instruct-GGUF"),
    Family("gpt-oss 20B, 120B", r"gpt-oss", "", "no small model has its vocabulary"),
)  # fmt: skip


def family_of(names: Iterable[str]) -> Family | None:
    """The family of a target of these names (file, repository, header); None if unknown, or if it is its draft."""
    names = [_plain(name) for name in names if name]
    for family in FAMILIES:
        if any(re.search(rf"(?:{family.pattern})(?![a-z0-9])", name) for name in names):  # Gemma 2B is no Gemma 2
            return None if any(map(family.is_draft, names)) else family
    return None
