"""Block: what the header of a block draft says about its blocks."""

from dataclasses import dataclass

from duo.errors import ModelError
from duo.llama.gguf_header import GgufHeader, head_kind

_BLOCK_SIZE = 16  # where the file has none, as for llama.cpp
# Keys of the architecture that are understood, here or by llama.cpp, for any block draft: a new one may be a variant.
_KNOWN = frozenset((
    "attention", "block_count", "block_size", "context_length", "conv_group_size", "conv_kernel_size",
    "embedding_length", "embedding_scale", "feed_forward_length", "final_logit_softcapping", "has_confidence_head",
    "hidden_activation", "logit_scale", "rope", "sample_from_anchor", "selector_rank", "selector_top_k",
    "target_layers", "vocab_size",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """What the file says about its blocks."""

    n_most: int  # candidates of a block
    mask: int  # the token
    from_anchor: bool  # whether the anchor's row makes the first candidate, and not the first mask's
    is_causal: bool
    has_confidence: bool  # of each candidate, that it is accepted
    top_k: int  # tokens of each position among which DFlash2 chooses; 0: it is none

    @classmethod
    def of(cls, header: GgufHeader) -> "Block":
        """Read a header. Raises ModelError, which names the key, for a variant that is not known."""
        own = (key for key in header.values if key.startswith(f"{header.architecture}."))
        if unknown := next((key for key in own if key.split(".")[1] not in _KNOWN), ""):
            raise ModelError(f"{header.path}: a block draft of an unknown variant: {unknown}")
        kind, mask = head_kind(header), header.integer("tokenizer.ggml.mask_token_id")
        size, flag = header.number("block_size"), header.flag
        needed = {"tokenizer.ggml.mask_token_id": mask is not None and 0 <= mask < len(header.tokens)}
        needed |= {"dflash.block_size": size > 1 or (kind == "DFlash" and not header.has("block_size"))}
        needed |= {"dflash.selector_top_k": kind != "DFlash2" or header.number("selector_top_k") > 0}
        if missing := next((key for key, is_there in needed.items() if not is_there), ""):
            raise ModelError(f"{header.path}: a {kind} draft without a valid {missing}")
        from_anchor = kind == "DSpark" and flag("sample_from_anchor", True)
        return cls(
            (size or _BLOCK_SIZE) - (not from_anchor), mask or 0, from_anchor, flag("attention.causal", False),
            "conf_proj.weight" in header.tensors, header.number("selector_top_k") * (kind == "DFlash2"),
        )  # fmt: skip
