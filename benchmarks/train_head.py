"""Trains an EAGLE-3 head for a Llama, such as the demo target, and writes it as GGUF.

    python -m benchmarks.train_head --target F16.gguf --out head.gguf [--tokens 1000000] [--epochs 2 | --steps 50]

Needs PyTorch beside duo (pip install torch), which nothing else here does. The target, in PyTorch too, writes answers
to questions that are made of lists (none is in a benchmark), half of them greedily, and the hidden rows of all layers
that the head reads are kept with their tokens. The head learns the target's distributions, also from rows of its own:
training-time test, as in EAGLE-3 (Li et al. 2025, arXiv 2503.01840). A tenth of the texts are kept apart, and the share
of their tokens that the head predicts is printed by depth. At the end the file is loaded, and the target's rows are
compared with those that llama.cpp gives it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.heads import HeadContext, check_pair
from duo.llama.model import Model

N_DEPTHS = 4  # of the candidates that are trained
LENGTH = 256  # tokens of a text
MOST = 0.05  # relative difference of rows: bfloat16 has 8 bits
WEIGHT = 0.8  # of the loss, for each further depth

ASKS = (
    "Explain {} to a child.", "Write a short story about {}.", "What are the advantages and disadvantages of {}?",
    "Give me five tips about {}.", "Write an email to a friend about {}.", "How does {} work?",
    "Write a poem about {}.", "What is the history of {}?", "Make a plan for a week with {}.",
    "Compare {} with its alternatives.", "Write a dialogue between two people about {}.",
    "List the most important facts about {}.", "Summarize in three sentences what you know about {}.",
    "Describe {} in detail.", "Why do people like {}?", "Write the introduction of an article about {}.",
    "What would you ask an expert about {}?", "Write a review of a book about {}.",
    "Invent a game for children about {} and explain its rules.", "What are common mistakes with {}?",
    "Translate into French: I would like to know more about {}.", "Write a Python function that has to do with {}.",
    "A shop sells 12 things for {} at 3 dollars each and 5 at 7 dollars each. What does everything cost?",
    "Write a speech about {} for a birthday.", "Create a table of contents for a course on {}.",
    "Tell a joke about {}.", "What should a beginner know about {}?", "How will {} change in ten years?",
    "Write a letter of complaint about {}.", "Give a definition of {} and three examples.",
)  # fmt: skip
ABOUT = (
    "bees", "volcanoes", "the French revolution", "bread", "a lost dog", "electric cars", "chess", "rivers", "the moon",
    "learning the piano", "interest", "trains", "a garden in spring", "honesty", "databases", "the human heart",
    "penguins", "a small village", "photosynthesis", "football", "coffee", "old maps", "recycling", "sleep", "bicycles",
    "stock markets", "a visit to the dentist", "glaciers", "sorting numbers", "friendship", "whales", "solar power",
    "the Roman empire", "cheese", "a broken clock", "robots", "swimming", "deserts", "Mars", "singing", "taxes",
    "airports", "a forest in autumn", "courage", "web servers", "the brain", "owls", "a night train", "gravity",
    "tennis", "tea", "castles", "plastic", "dreams", "walking", "insurance", "a new neighbour", "coral reefs",
    "prime numbers", "patience", "horses", "wind turbines", "the Vikings", "rice", "an empty house", "drones",
    "climbing", "islands", "black holes", "dancing", "rent", "harbours", "a snowstorm", "curiosity", "spreadsheets",
    "the immune system", "foxes", "a long bridge", "magnets", "basketball", "chocolate", "pyramids", "paper", "memory",
    "running", "mortgages", "a strange letter", "mountains", "text files", "gratitude", "turtles", "batteries",
    "the silk road", "potatoes", "a locked door", "telescopes", "sailing", "lakes", "comets", "painting",
)  # fmt: skip


class Target:
    """A Llama in PyTorch, of the weights in a GGUF file."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        reader = gguf.GGUFReader(path)
        number = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items() if "llama." in name}
        self.n_layer, self.n_head = number["block_count"], number["attention.head_count"]
        self.n_kv, self.n_embd = number["attention.head_count_kv"], number["embedding_length"]
        self.n_ff, self.eps = number["feed_forward_length"], number["attention.layer_norm_rms_epsilon"]
        self.theta, self.n_rot = number["rope.freq_base"], self.n_embd // self.n_head
        self.n_ctx = number["context_length"]
        self.fields = reader.fields
        self.weights = {
            t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type)).to(dtype) for t in reader.tensors
        }
        self.output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.layers = [2 + 1, self.n_layer // 2, self.n_layer - 3]  # whose inputs the head reads

    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"], self.eps)

    def __call__(self, tokens: Tensor, cache: Tensor, n_past: int) -> tuple[Tensor, Tensor]:
        """The layers' inputs `[batch, n, 3 * n_embd]` and the last row `[batch, n, n_embd]` of `tokens [batch, n]`.

        `cache [n_layer, 2, batch, n_kv, LENGTH, n_rot]` holds n_past tokens, and gets these.
        """
        batch, n = tokens.shape
        x, features = self.weights["token_embd.weight"][tokens], list[Tensor]()
        turn = rotation(n_past, n, self.n_rot, self.theta)
        mask = None if n == 1 else torch.ones(n, n_past + n, dtype=torch.bool).tril(n_past)
        for i in range(self.n_layer):
            if i in self.layers:
                features.append(x)
            w, name = self.weights, f"blk.{i}"
            h = self.norm(x, f"{name}.attn_norm")
            q, k, v = (
                (h @ w[f"{name}.attn_{part}.weight"].T).view(batch, n, -1, self.n_rot).transpose(1, 2) for part in "qkv"
            )
            cache[i, 0, :, :, n_past : n_past + n], cache[i, 1, :, :, n_past : n_past + n] = rotated(k, turn), v
            keys, values = cache[i, :, :, :, : n_past + n]
            h = functional.scaled_dot_product_attention(rotated(q, turn), keys, values, mask, enable_gqa=True)
            x = x + h.transpose(1, 2).reshape(batch, n, -1) @ w[f"{name}.attn_output.weight"].T
            h = self.norm(x, f"{name}.ffn_norm")
            h = functional.silu(h @ w[f"{name}.ffn_gate.weight"].T) * (h @ w[f"{name}.ffn_up.weight"].T)
            x = x + h @ w[f"{name}.ffn_down.weight"].T
        return torch.cat(features, -1), self.norm(x, "output_norm")


def rotation(first: int, n: int, n_rot: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[n, n_rot / 2]` of the rotary embedding for `n` positions."""
    angles = torch.arange(first, first + n)[:, None] * theta ** (-torch.arange(0, n_rot, 2) / n_rot)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate neighbouring pairs, as llama.cpp does for a Llama: x [..., n, n_rot]."""
    cos, sin = (part.to(x.dtype) for part in turn)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Head(nn.Module):
    """What llama.cpp's src/models/eagle3.cpp computes. It begins as the target's last layer."""

    def __init__(self, target: Target, ids: Tensor) -> None:
        super().__init__()
        self.target, n, last = target, target.n_embd, f"blk.{target.n_layer - 1}"
        w = {name: weight.float() for name, weight in target.weights.items() if name.startswith((last, "output"))}
        self.embeddings = target.weights["token_embd.weight"].float()
        self.fc = nn.Parameter(torch.cat([0.01 * torch.randn(n, 2 * n) / math.sqrt(n), torch.eye(n)], 1))
        token_part = 0.02 / math.sqrt(n)

        def both(part: str) -> nn.Parameter:
            weight = w[f"{last}.attn_{part}.weight"]
            return nn.Parameter(torch.cat([token_part * torch.randn_like(weight), weight], 1))

        self.q, self.k, self.v = both("q"), both("k"), both("v")
        self.o = nn.Parameter(w[f"{last}.attn_output.weight"].clone())
        self.gate, self.up, self.down = (
            nn.Parameter(w[f"{last}.ffn_{part}.weight"].clone()) for part in ("gate", "up", "down")
        )
        self.token_norm, self.row_norm = (
            nn.Parameter(torch.ones(n)),
            nn.Parameter(w[f"{last}.attn_norm.weight"].clone()),
        )
        self.ffn_norm = nn.Parameter(w[f"{last}.ffn_norm.weight"].clone())
        self.output_norm = nn.Parameter(w["output_norm.weight"].clone())
        self.output = nn.Parameter(target.output[ids].float().clone())

    def forward(self, tokens: Tensor, features: Tensor, n_depths: int) -> Iterator[Tensor]:
        """The logits of the draft vocabulary at each depth, `[batch, n, n_draft]`.

        Row t of depth s predicts token t + s + 2 of the text, from token t + s + 1.
        """
        target, (batch, n, _) = self.target, features.shape
        row = features @ self.fc.T
        keys, values = list[Tensor](), list[Tensor]()
        causal = torch.full((n, n), -math.inf).triu(1)
        for depth in range(n_depths):
            token = functional.rms_norm(
                self.embeddings[tokens[:, depth : depth + n]], (target.n_embd,), self.token_norm, target.eps
            )
            both = torch.cat([token, functional.rms_norm(row, (target.n_embd,), self.row_norm, target.eps)], -1)
            turn = rotation(depth, n, target.n_rot, target.theta)
            q, k, v = (
                (both @ part.T).view(batch, n, -1, target.n_rot).transpose(1, 2) for part in (self.q, self.k, self.v)
            )
            q, k = rotated(q, turn), rotated(k, turn)
            n_group = target.n_head // target.n_kv
            keys.append(k.repeat_interleave(n_group, 1))
            values.append(v.repeat_interleave(n_group, 1))
            scores = q @ keys[0].transpose(-1, -2) + causal * math.sqrt(target.n_rot)
            # Of the rows of its own, each sees only those of its chain.
            chain = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
            share = torch.softmax(torch.cat([scores, *chain], -1) / math.sqrt(target.n_rot), -1)
            seen = share[..., :n] @ values[0]
            for i, value in enumerate(values[1:]):
                seen = seen + share[..., n + i : n + i + 1] * value
            middle = row + seen.transpose(1, 2).reshape(batch, n, -1) @ self.o.T
            h = functional.rms_norm(middle, (target.n_embd,), self.ffn_norm, target.eps)
            row = middle + (functional.silu(h @ self.gate.T) * (h @ self.up.T)) @ self.down.T
            yield functional.rms_norm(row, (target.n_embd,), self.output_norm, target.eps) @ self.output.T


def questions(model: Model, n: int) -> list[list[int]]:
    """Tokens of `n` prompts in the target's chat template."""
    found = [ask.format(about) for ask, about in product(ASKS, ABOUT)]
    chosen = random.Random(1).choices(found, k=n) if n > len(found) else random.Random(1).sample(found, n)
    return [model.tokenize(model.apply_chat_template([{"role": "user", "content": text}])) for text in chosen]


@torch.no_grad()
def write(target: Target, model: Model, n_tokens: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Texts `[n, LENGTH]` of prompts and answers, their features, and their last rows."""
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    n_batches, began = max(1, round(n_tokens / LENGTH / batch)), time.monotonic()
    prompts = questions(model, n_batches * batch)
    for i in range(n_batches):
        asked = prompts[i * batch : (i + 1) * batch]
        tokens = torch.zeros(batch, LENGTH + 1, dtype=torch.long)
        lengths = torch.tensor([len(prompt) for prompt in asked])
        for j, prompt in enumerate(asked):
            tokens[j, : len(prompt)] = torch.tensor(prompt)
        cache = torch.zeros(target.n_layer, 2, batch, target.n_kv, LENGTH, target.n_rot, dtype=target.output.dtype)
        # Half of the texts are sampled.
        heat = torch.where(torch.arange(batch) % 2 == 0, 0.0, 1.0)[:, None]
        features, last = list[Tensor](), list[Tensor]()
        n_common = int(lengths.min())
        at = 0
        while at < LENGTH:
            n = n_common if not at else 1
            found, rows = target(tokens[:, at : at + n], cache, at)
            at += n
            logits = (rows[:, -1] @ target.output.T).float()
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
            chosen = (logits + heat * noise).argmax(-1)
            tokens[:, at] = torch.where(at < lengths, tokens[:, at], chosen)
            features.append(found.bfloat16())
            last.append(rows.bfloat16())
        kept.append((tokens[:, :LENGTH], torch.cat(features, 1), torch.cat(last, 1)))
        done = (i + 1) * batch * LENGTH
        print(f"wrote {done} tokens, {done / (time.monotonic() - began):.0f} tokens/s", flush=True)
    parts = [torch.cat(part) for part in zip(*kept, strict=True)]
    return parts[0], parts[1], parts[2]


def losses(
    head: Head, ids: Tensor, place: Tensor, tokens: Tensor, features: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss, and for each depth the share of the predictions that are the target's most likely token."""
    n = LENGTH - N_DEPTHS - 1
    loss, right = torch.zeros(()), list[Tensor]()
    with torch.no_grad():
        wanted = last.to(head.target.output.dtype) @ head.target.output[ids].T  # of the draft vocabulary
        best = (last.to(head.target.output.dtype) @ head.target.output.T).argmax(-1)
    for depth, logits in enumerate(head(tokens[:, 1:], features[:, :n].float(), N_DEPTHS)):
        there = slice(depth + 1, depth + 1 + n)
        known = place[best[:, there]] >= 0
        goal = torch.softmax(wanted[:, there].float(), -1)
        each = -(goal * torch.log_softmax(logits, -1)).sum(-1)
        loss = loss + WEIGHT**depth * (each * known).sum() / known.sum()
        right.append((logits.argmax(-1) == place[best[:, there]]).float().mean())
    return loss, torch.stack(right).detach()


def train(
    target: Target,
    texts: tuple[Tensor, Tensor, Tensor],
    ids: Tensor,
    *,
    n_steps: int,
    n_epochs: float,
    batch: int,
    rate: float,
) -> Head:
    """A head, trained on nine tenths of the texts for `n_steps` (0: n_epochs)."""
    place = torch.full((len(target.output),), -1)
    place[ids] = torch.arange(len(ids))
    n_kept = max(batch, len(texts[0]) // 10)
    training, kept = [part[n_kept:] for part in texts], [part[:n_kept] for part in texts]
    head = Head(target, ids)
    n_steps = n_steps or max(1, int(n_epochs * len(training[0]) / batch))
    optimizer = torch.optim.AdamW(head.parameters(), rate, (0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, n_steps, pct_start=min(0.5, 50 / n_steps))
    order, began = list[int](), time.monotonic()
    for step in range(1, n_steps + 1):
        if len(order) < batch:
            order = torch.randperm(len(training[0])).tolist()
        chosen, order = order[:batch], order[batch:]
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = losses(head, ids, place, *(part[chosen] for part in training))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == n_steps:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                found = [
                    losses(head, ids, place, *(p[i : i + batch] for p in kept))[1]
                    for i in range(0, min(n_kept, 4 * batch), batch)
                ]
            shares = " ".join(f"{share:.3f}" for share in torch.stack(found).mean(0).tolist())
            seconds = time.monotonic() - began
            print(f"step {step}/{n_steps} loss {loss:.3f}; right in other texts {shares}; {seconds:.0f} s", flush=True)
    return head


def save(head: Head, ids: Tensor, path: Path, name: str) -> None:
    """Write the head as GGUF, in F16 where it is a matrix."""
    target, writer = head.target, gguf.GGUFWriter(path, "eagle3")
    writer.add_name(name)
    writer.add_context_length(target.n_ctx)
    writer.add_embedding_length(target.n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(target.n_ff)
    writer.add_head_count(target.n_head)
    writer.add_head_count_kv(target.n_kv)
    writer.add_layer_norm_rms_eps(target.eps)
    writer.add_rope_freq_base(target.theta)
    writer.add_rope_dimension_count(target.n_rot)
    writer.add_vocab_size(len(target.output))
    writer.add_array("eagle3.target_layers", target.layers)
    writer.add_uint32("eagle3.target_hidden_size", target.n_embd)
    for key, field in target.fields.items():
        if key.startswith("tokenizer."):
            kinds = [gguf.GGUFValueType(kind) for kind in field.types]
            writer.add_key_value(key, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    layer = "blk.0"
    matrices: dict[str, Tensor] = {
        "fc": head.fc, "output": head.output, f"{layer}.attn_q": head.q, f"{layer}.attn_k": head.k,
        f"{layer}.attn_v": head.v, f"{layer}.attn_output": head.o, f"{layer}.ffn_gate": head.gate,
        f"{layer}.ffn_up": head.up, f"{layer}.ffn_down": head.down,
    }  # fmt: skip
    norms: dict[str, Tensor] = {
        "output_norm": head.output_norm, f"{layer}.attn_norm": head.token_norm, f"{layer}.attn_norm_2": head.row_norm,
        f"{layer}.ffn_norm": head.ffn_norm,
    }  # fmt: skip
    for title, matrix in matrices.items():
        writer.add_tensor(f"{title}.weight", matrix.detach().numpy().astype(np.float16))
    for title, vector in norms.items():
        writer.add_tensor(f"{title}.weight", vector.detach().numpy().astype(np.float32))
    writer.add_tensor("d2t", ids.numpy().astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def difference(target: Path, head: Path, tokens: Tensor, features: Tensor) -> float:
    """The root mean square difference of the rows of a text, `[n, 3 * n_embd]`, from those that llama.cpp gives.

    Relative to these rows. PyTorch computes in bfloat16.
    """
    with closing(Model(ModelConfig(target))) as model, closing(Model(ModelConfig(head))) as own:
        check_pair(model, own)
        config = ContextConfig(LENGTH, 1, 1)
        with closing(Context(model, config)) as context, closing(HeadContext(own, config, context)) as reader:
            context.decode(tokens.tolist())
            rows = torch.from_numpy(reader.rows.array[1 : len(tokens) + 1].copy())
    return float((rows - features.float()).pow(2).mean().sqrt() / rows.pow(2).mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="that the target writes")
    parser.add_argument("--texts", type=Path, help="file to keep them in, or to read them from")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of epochs")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the head can predict")
    parser.add_argument("--batch", type=int, default=128, help="texts that are written at once")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    options: Any = parser.parse_args()
    torch.manual_seed(0)
    target = Target(options.target, torch.bfloat16)
    if options.texts and options.texts.exists():
        texts = torch.load(options.texts)
    else:
        texts = write(target, Model(ModelConfig(options.target), vocabulary_only=True), options.tokens, options.batch)
        if options.texts:
            torch.save(texts, options.texts)
    counts = torch.bincount(texts[0].flatten(), minlength=len(target.output))
    ids = counts.topk(options.vocabulary).indices.sort().values
    head = train(target, texts, ids, n_steps=options.steps, n_epochs=options.epochs, batch=16, rate=options.rate)
    save(head, ids, options.out, f"EAGLE-3 head of {options.target.stem}")
    n = LENGTH // 2
    differs = difference(options.target, options.out, texts[0][0, :n], texts[1][0, :n])
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB; rows differ from llama.cpp's by {differs:.1%}")
    if differs > MOST:
        sys.exit("the head was trained on other rows than those that it gets")


if __name__ == "__main__":
    main()
