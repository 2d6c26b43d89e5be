"""Which small model drafts for which family of targets."""

import re

from duo.models.families import FAMILIES, family_of
from tests.command import ROOT

TARGETS = {
    "Meta-Llama-3.1-70B-Instruct-Q4_K_M.gguf": "Llama 3.1, 3.2, 3.3",
    "Meta-Llama-3-8B-Instruct.Q4_0.gguf": None,  # other special tokens than 3.1
    "DeepSeek-R1-Distill-Llama-70B-Q4_K_M.gguf": "DeepSeek R1 Distill Llama 70B",
    "DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf": "DeepSeek R1 Distill Qwen 7B to 32B",
    "qwen2.5-coder-32b-instruct-q4_k_m.gguf": "Qwen2.5-Coder",
    "Qwen3.5-27B-Q4_K_M.gguf": None,
    "Qwen3-Next-80B-A3B-Instruct-Q4_K_M.gguf": None,
    "gemma-3-27b-it-Q4_K_M.gguf": "Gemma 3",
    "gemma-2b-it-Q8_0.gguf": None,  # the first Gemma
    "gemma-2-27b-it-Q8_0.gguf": "Gemma 2 9B, 27B",
    "gemma-3n-E4B-it-Q4_K_M.gguf": None,
    "Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M.gguf": "Mistral Small 3.1, 3.2",
    "phi-4-Q4_K_M.gguf": "Phi-4 14B",
    "gpt-oss-120b-mxfp4-00001-of-00003.gguf": "gpt-oss 20B, 120B",
    "my-finetune.gguf": None,
    "Qwen3-0.6B-F16.gguf": None,  # it is a draft
}


def test_the_family_is_in_one_of_the_names_of_a_target() -> None:
    for name, targets in TARGETS.items():
        found = family_of(("main.gguf", "", name))
        assert (found and found.targets) == targets, name


def test_every_draft_can_be_named_and_is_in_the_documentation() -> None:
    lines = ["| target | draft on Hugging Face |", "|---|---|"]
    for family in FAMILIES:
        assert bool(family.draft) != bool(family.note)
        if family.draft:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+(:\w+)?", family.draft)
            assert family.is_draft(family.draft)
            assert family.draft.partition(":")[0] in family.advice
        lines.append(f"| {family.targets} | {f'`{family.draft}`' if family.draft else f'none: {family.note}'} |")
    assert "\n".join(lines) in (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
