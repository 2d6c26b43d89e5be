"""Trains an EAGLE-3 head or a block draft (DFlash) for a Llama, such as the demo target, and writes it as GGUF.

    python -m benchmarks.train_head prompts F16.gguf prompts.json --questions question.jsonl
    python -m benchmarks.train_head write F16.gguf texts.npz --prompts prompts.json --minutes 1
    python -m benchmarks.train_head eagle3|dflash F16.gguf head.gguf --texts texts.npz --minutes 2 --device cuda

All of it needs PyTorch, which is in no environment of duo, and only the first step needs duo: the file can be copied to
a machine that has PyTorch and gguf. `write`: the target, in PyTorch too, answers the questions, greedily and then by
sampling, and asks itself more of them. An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840) learns its distributions also
from rows of its own (training-time test), a block draft (arXiv 2602.06036) for the masks after random anchors. Two
questions of each kind are kept apart. Printed is how often a candidate is the target's token, by position, where those
before it are.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

N_DEPTHS = 5  # candidates of an EAGLE-3 head that are trained
MASK = 3  # the token of a mask, which is in no text: <repo_name> of SmolLM2
HEAT = 0.8  # of the sampled texts
ROOM = {"cuda": 1_500_000, "cpu": 16_000}  # tokens of the caches of all texts that are written at once
KEPT, TRAINED, MORE = range(3)  # kinds of texts: greedy answers to questions, kept apart or not, and others
began = time.monotonic()


def note(text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


def block(weights: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """Those of layer i, by the last part of their names."""
    return {name.split(".")[2]: weight for name, weight in weights.items() if name.startswith(f"blk.{i}.")}


class Target:
    """A Llama in PyTorch, of the weights in a GGUF file."""

    def __init__(self, path: Path, device: str) -> None:
        reader = gguf.GGUFReader(path)
        if any(tensor.name.startswith("rope_freqs") for tensor in reader.tensors):
            raise SystemExit(f"{path}: a Llama with factors of its positions (rope_freqs), which this does not compute")
        number = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items() if "llama." in name}
        self.n_layer, self.n_head = number["block_count"], number["attention.head_count"]
        self.n_kv, self.n_embd = number["attention.head_count_kv"], number["embedding_length"]
        self.eps, self.theta = number["attention.layer_norm_rms_epsilon"], number.get("rope.freq_base", 10000.0)
        self.n_rot = self.n_embd // self.n_head
        self.fields, self.device = reader.fields, torch.device(device)
        self.dtype, self.w = torch.bfloat16 if device == "cuda" else torch.float32, dict[str, Tensor]()
        for t in reader.tensors:
            self.w[t.name] = torch.tensor(gguf.dequantize(t.data, t.tensor_type)).to(self.device, self.dtype)
        self.blocks = [block(self.w, i) for i in range(self.n_layer)]
        self.embeddings = self.w["token_embd.weight"]
        self.output = self.w.get("output.weight", self.embeddings)
        self.stop = self.fields["tokenizer.ggml.eos_token_id"].contents()

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), self.eps)

    def split(self, x: Tensor, *weights: Tensor) -> list[Tensor]:
        """Projections of x `[batch, n, n_embd]`, as `[batch, heads, n, n_rot]`."""
        return [(x @ weight.T).unflatten(-1, (-1, self.n_rot)).transpose(1, 2) for weight in weights]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """`[batch, n, n_head * n_rot]` of mask `[batch, n, keys]`. The query heads of one key are more rows of it."""
        batch, _, n, _ = q.shape
        n_group = self.n_head // self.n_kv
        folded, mask = q.reshape(batch, self.n_kv, n_group * n, -1), mask.repeat(1, n_group, 1)[:, None]
        found = functional.scaled_dot_product_attention(folded, k, v, mask)
        return found.reshape(batch, self.n_head, n, -1).transpose(1, 2).flatten(2)

    def turn(self, x: Tensor, positions: Tensor, *, halves: bool = False) -> Tensor:
        """Rotate x `[batch, heads, n, n_rot]`: pairs of neighbours, as llama.cpp does for a Llama, or of halves."""
        speeds = self.theta ** (-torch.arange(0, self.n_rot, 2, device=x.device) / self.n_rot)
        angles = positions[:, None, :, None] * speeds
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, two = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
        pair = one * cos - two * sin, one * sin + two * cos
        return torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Tensor | None = None, layers: Sequence[int] = ()
    ) -> Tensor:
        """What enters `layers`, and the last row, `[batch, n, (len(layers) + 1) * n_embd]`, of `tokens [batch, n]`.

        `cache [n_layer, 2, batch, n_kv, keys, n_rot]`: its last n keys are those of these tokens.
        """
        x, features, n = self.embeddings[tokens], dict[int, Tensor](), tokens.shape[1]
        for i, w in enumerate(self.blocks):
            if i in layers:
                features[i] = x
            q, k, v = self.split(self.norm(x, w["attn_norm"]), w["attn_q"], w["attn_k"], w["attn_v"])
            q, k = self.turn(q, positions), self.turn(k, positions)
            if cache is not None:
                cache[i, 0, :, :, -n:], cache[i, 1, :, :, -n:] = k, v
                k, v = cache[i]
            x = self.rest(x, self.attend(q, k, v, mask), w)
        return torch.cat([*(features[i] for i in layers), self.norm(x, self.w["output_norm.weight"])], -1)

    def rest(self, x: Tensor, seen: Tensor, w: dict[str, Tensor]) -> Tensor:
        """What comes after the attention of a layer."""
        x = x + seen @ w["attn_output"].T
        h = self.norm(x, w["ffn_norm"])
        return x + (functional.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T

    @torch.no_grad()
    def answers(self, prompts: list[list[int]], heat: float, n_most: int) -> list[list[int]]:
        """Continue each prompt, up to and with the token that ends it, or `n_most` tokens."""
        n, batch, device = max(map(len, prompts)), len(prompts), self.device
        tokens = torch.tensor([[0] * (n - len(prompt)) + prompt for prompt in prompts], device=device)
        first = torch.tensor([[n - len(prompt)] for prompt in prompts], device=device)
        shape = (self.n_layer, 2, batch, self.n_kv, n + n_most, self.n_rot)
        cache, at = torch.zeros(shape, dtype=self.dtype, device=device), torch.arange(n + n_most, device=device)
        there = at[None, None] >= first[:, None]
        mask = there[..., :n] & (at[:n, None] >= at[:n]) | torch.eye(n, dtype=torch.bool, device=device)
        ended, given = torch.zeros(batch, dtype=torch.bool, device=device), list[Tensor]()
        for end in range(n, n + n_most):
            rows = self(tokens, (at[end - tokens.shape[1] : end] - first).clamp(0), mask, cache[..., :end, :])
            logits = (rows[:, -1] @ self.output.T).float()
            if heat:
                logits -= heat * torch.empty_like(logits).exponential_().log_()
            tokens, mask = logits.argmax(-1, keepdim=True), there[..., : end + 1]
            given.append(tokens)
            ended |= tokens[:, 0] == self.stop
            if len(given) % 16 == 0 and bool(ended.all()):
                break
        found = [row.tolist() for row in torch.cat(given, 1).cpu()]
        return [row[: row.index(self.stop) + 1] if self.stop in row else row for row in found]


def prompts(options: Any) -> None:
    """Write the tokens of the questions in the target's chat template, and of what the template has around them."""
    from benchmarks.questions import read_questions  # noqa: PLC0415  the other steps need no duo
    from duo.config import ModelConfig  # noqa: PLC0415
    from duo.llama.model import Model  # noqa: PLC0415

    model, seen = Model(ModelConfig(options.target), vocabulary_only=True), list[str]()
    around = model.apply_chat_template([{"role": "user", "content": "\0"}]).split("\0")
    found: dict[str, list[list[int]]] = {"kept": [], "trained": [], "around": [model.tokenize(part) for part in around]}
    for question in read_questions(options.questions):
        kind = "kept" if seen.count(question.category) < 2 else "trained"
        seen.append(question.category)
        found[kind].append(model.tokenize(question.turns[0].join(around)))
    if not found["trained"]:
        raise SystemExit("no kind has more questions than the two that are kept apart: nothing to train on")
    options.output.write_text(json.dumps(found))


def write(options: Any) -> None:
    """Write the target's answers to all questions, and more texts until it is time or they are enough."""
    target, asked = Target(options.target, options.device), json.loads(options.prompts.read_text())
    (before, after), room = asked["around"], ROOM[options.device]
    texts, kinds, starts = list[list[int]](), list[int](), list[int]()

    def is_over() -> bool:
        return bool(sum(map(len, texts)) >= options.tokens or time.monotonic() - began > 60 * options.minutes)

    def answer(each: list[list[int]], heat: float = 0, kind: int = MORE) -> None:
        each = sorted(each, key=len, reverse=True)
        while each and not (kind == MORE and is_over()):
            n = max(1, room // (len(each[0]) + options.length))
            part, each = each[:n], each[n:]
            for prompt, found in zip(part, target.answers(part, heat, options.length), strict=True):
                texts.append(prompt + found)
                kinds.append(TRAINED if kind == KEPT and prompt not in asked["kept"] else kind)
                starts.append(len(prompt))
            note(f"{len(texts)} texts of {sum(map(len, texts))} tokens")

    answer(asked["kept"] + asked["trained"], 0, KEPT)  # together: a decode takes as long for few texts
    n = room // (len(before) + 128 + options.length)
    while not is_over():
        for heat in (0, HEAT):
            own = [found[:-1] for found in target.answers(n * [before], 1.0, 128) if found[-1] == target.stop]
            answer([before + question + after for question in own], heat)
        answer(4 * asked["trained"], HEAT)
    np.savez(options.output, tokens=np.concatenate(texts), lengths=[*map(len, texts)], kinds=kinds, starts=starts)


# Texts `[texts, n]`: places of their tokens in the array of all, where there is one, which of them the target wrote.
Batch = tuple[Tensor, Tensor, Tensor]
Losses = tuple[Tensor, list[Tensor], list[Tensor]]  # the loss; by position, which candidates are right, which can be


class Texts:
    """All tokens in one array, and in another the target's rows of each."""

    def __init__(self, target: Target, layers: Sequence[int], paths: Sequence[Path], n_batch: int) -> None:
        files, device = [dict(np.load(path)) for path in paths], target.device
        self.lengths, self.kinds, self.starts, tokens = (
            np.concatenate([file[name] for file in files]) for name in ("lengths", "kinds", "starts", "tokens")
        )
        self.n_batch, self.offsets = n_batch, np.cumsum(self.lengths) - self.lengths
        self.tokens = torch.from_numpy(tokens).long().to(device)
        width = (len(layers) + 1) * target.n_embd
        self.rows = torch.empty(len(tokens), width, dtype=torch.bfloat16, device=device)
        self.best = torch.zeros_like(self.tokens)  # the target's likeliest next token
        with torch.no_grad():
            for index, there, _ in self.batches(np.arange(len(self.lengths))):
                at = torch.arange(index.shape[1], device=device)
                mask = (at[:, None] >= at).expand(len(index), -1, -1)
                rows = target(self.tokens[index], at.expand_as(index), mask, layers=layers)[there]
                self.rows[index[there]] = rows.bfloat16()
                self.best[index[there]] = (rows[:, -target.n_embd :] @ target.output.T).argmax(-1)

    def batches(self, chosen: Any) -> Iterator[Batch]:
        """Random batches of texts of similar length."""
        parts, most = [list[int]()], 0
        for i in sorted(chosen, key=lambda i: self.lengths[i] * random.uniform(0.9, 1.1)):
            most = max(most, self.lengths[i])
            if parts[-1] and most * (len(parts[-1]) + 1) > self.n_batch:
                parts, most = [*parts, []], self.lengths[i]
            parts[-1].append(i)
        for part in random.sample(parts, len(parts)):
            arrays = (self.lengths[part], self.starts[part], self.offsets[part])
            lengths, starts, offsets = (torch.from_numpy(array).to(self.tokens.device)[:, None] for array in arrays)
            at = torch.arange(int(lengths.max()), device=self.tokens.device)
            there = at < lengths
            yield (offsets + at).clamp(max=len(self.tokens) - 1), there, there & (at >= starts)


class Head(nn.Module):
    """Layers that begin as the target's last ones, and read rows of it. `ids`: the tokens that it can predict."""

    architecture, n_layer, keys = "", 1, dict[str, Any]()

    def __init__(self, target: Target, ids: Tensor, layers: Sequence[int]) -> None:
        super().__init__()
        self.target, self.ids, self.layers, n = target, ids, layers, target.n_embd
        self.is_known = torch.zeros(len(target.output), device=ids.device).index_fill(0, ids, 1.0)
        self.p: dict[str, Tensor] = {"output_norm": target.w["output_norm.weight"], "output": target.output[ids]}
        for name, weight in target.w.items():
            if name.startswith("blk.") and (i := int(name.split(".")[1]) - target.n_layer + self.n_layer) >= 0:
                self.p[f"blk.{i}.{name.split('.')[2]}"] = weight.float()
        small = 0.01 * torch.randn(n, (len(layers) - 1) * n, device=ids.device) / math.sqrt(n)
        self.p["fc"] = torch.cat([small, torch.eye(n, device=ids.device)], 1)

    def trained(self) -> None:
        """Make parameters of the weights."""
        self.p = {name: nn.Parameter(weight.float().clone()) for name, weight in self.p.items()}
        self.parts = nn.ParameterList(self.p.values())

    def score(self, x: Tensor, texts: Texts, before: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of rows `x [n, n_embd]`, for the tokens after places `before [n]`, and which of these it finds."""
        logits = (self.target.norm(x, self.p["output_norm"]) @ self.p["output"].T).float()
        with torch.no_grad():
            weights = weights * self.is_known[texts.best[before]]
            last = texts.rows[before, -self.target.n_embd :].to(self.target.dtype)
            goal = (last @ self.target.output[self.ids].T).float().softmax(-1)
        each = functional.cross_entropy(logits, goal, reduction="none")
        right = self.ids[logits.argmax(-1)] == texts.tokens[before + 1]
        return (each * weights).sum() / weights.sum().clamp(1e-6), right

    def losses(self, texts: Texts, batch: Batch) -> Losses:
        raise NotImplementedError

    def forward(self, texts: Texts, batch: Batch) -> Losses:
        with torch.autocast(self.ids.device.type, torch.bfloat16, enabled=self.ids.device.type == "cuda"):
            return self.losses(texts, batch)


class Eagle3(Head):
    """What llama.cpp's src/models/eagle3.cpp computes."""

    architecture = "eagle3"

    def __init__(self, target: Target, ids: Tensor, _: Any) -> None:
        super().__init__(target, ids, [2, target.n_layer // 2, target.n_layer - 2])
        for name in ("blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"):
            token = 0.02 / math.sqrt(target.n_embd) * torch.randn_like(self.p[name])
            self.p[name] = torch.cat([token, self.p[name]], 1)
        self.p["blk.0.attn_norm_2"], self.p["blk.0.attn_norm"] = self.p["blk.0.attn_norm"], torch.ones_like(token[0])
        self.keys = {"eagle3.target_hidden_size": target.n_embd}
        self.trained()

    def losses(self, texts: Texts, batch: Batch) -> Losses:
        """See Head. Row t at depth s predicts token t + s + 2 of the text, from token t + s + 1."""
        (index, _, whose), target, w, device = batch, self.target, block(self.p, 0), self.ids.device
        n = index.shape[1] - N_DEPTHS - 1
        row = (texts.rows[index[:, :n], : -target.n_embd].float() @ self.p["fc"].T).float()
        at, keys, values = torch.arange(n, device=device), list[Tensor](), list[Tensor]()
        causal, itself = at[:, None] >= at, torch.eye(n, dtype=torch.bool, device=device)
        loss, right, wanted = torch.zeros((), device=device), list[Tensor](), list[Tensor]()
        for depth in range(N_DEPTHS):
            before, own = index[:, depth + 1 : depth + 1 + n], whose[:, depth + 2 : depth + 2 + n]
            token = target.norm(target.embeddings[texts.tokens[before]].float(), w["attn_norm"])
            both = torch.cat([token, target.norm(row, w["attn_norm_2"])], -1)
            q, k, v = target.split(both, w["attn_q"], w["attn_k"], w["attn_v"])
            keys.append(target.turn(k, at[None] + depth))
            values.append(v)
            # Of the rows of its own, each sees only those of its chain.
            mask = torch.cat([causal, *depth * [itself]], 1).expand(len(before), -1, -1)
            seen = target.attend(target.turn(q, at[None] + depth), torch.cat(keys, 2), torch.cat(values, 2), mask)
            row = target.rest(row, seen, w)
            each, found = self.score(row[own], texts, before[own], torch.ones((), device=device))
            loss = loss + 0.8**depth * each
            right.append(torch.zeros_like(own).masked_scatter(own, found))
            wanted.append(own)
        return loss, right, wanted


class DFlash(Head):
    """What llama.cpp's src/models/dflash.cpp computes of a plain block draft."""

    architecture = "dflash"

    def __init__(self, target: Target, ids: Tensor, options: Any) -> None:
        self.n_layer, self.block, self.causal, n = options.layers, options.block, options.causal, target.n_layer
        super().__init__(target, ids, [2, *(round(2 + (n - 4) * i / 4) for i in (1, 2, 3)), n - 2])
        for name in [f"blk.{i}.attn_{part}" for i in range(self.n_layer) for part in "qk"]:
            turned = self.p[name].unflatten(0, (-1, target.n_rot // 2, 2))  # its heads are rotated by halves
            self.p[name] = turned.transpose(1, 2).flatten(0, 2)
            self.p[f"{name}_norm"] = torch.ones(target.n_rot, device=ids.device)
        self.p["enc.output_norm"] = torch.ones_like(self.p["output_norm"])
        self.keys = {"dflash.block_size": self.block, "tokenizer.ggml.mask_token_id": MASK}
        self.keys["dflash.attention.causal"] = self.causal
        self.trained()

    def losses(self, texts: Texts, batch: Batch) -> Losses:
        """See Head. Anchors are random tokens that the target wrote."""
        target, (index, there, own), size, (n_texts, n) = self.target, batch, self.block, batch[0].shape
        anchors = torch.multinomial(own[:, : n - 1].float() + 1e-9, max(1, n // size), replacement=True)
        number, at = torch.arange(anchors.shape[1] * size, device=index.device), torch.arange(n, device=index.device)
        places = anchors.repeat_interleave(size, 1) + number % size
        wanted = (places < there.sum(1, keepdim=True)) & (number % size > 0)
        tokens = texts.tokens[index.gather(1, places.clamp(max=n - 1))].masked_fill(number % size > 0, MASK)
        x, given = target.embeddings[tokens].float(), texts.rows[index, : -target.n_embd].float() @ self.p["fc"].T
        given, positions = target.norm(given, self.p["enc.output_norm"]), torch.cat([at.expand_as(index), places], 1)
        seen = (number[:, None] // size == number // size) & ((number[:, None] >= number) | (not self.causal))
        known = at < anchors.repeat_interleave(size, 1)[..., None]
        mask = torch.cat([known, seen.expand(n_texts, -1, -1)], -1)
        for w in (block(self.p, i) for i in range(self.n_layer)):
            h = target.norm(x, w["attn_norm"])
            (q,), (k, v) = (
                target.split(h, w["attn_q"]),
                target.split(torch.cat([given, h], 1), w["attn_k"], w["attn_v"]),
            )
            q = target.turn(target.norm(q, w["attn_q_norm"]), places, halves=True)
            k = target.turn(target.norm(k, w["attn_k_norm"]), positions, halves=True)
            x = target.rest(x, target.attend(q, k.to(v.dtype), v, mask), w)
        before = index.gather(1, (places - 1).clamp(max=n - 1))[wanted]
        weights = torch.exp(-2 * (number % size - 1) / size).expand_as(places)[wanted]
        loss, found = self.score(x[wanted], texts, before, weights)
        right = torch.zeros_like(wanted).masked_scatter(wanted, found)
        return loss, *([part[:, j::size] for j in range(1, size)] for part in (right, wanted))


@torch.no_grad()
def judged(head: Head, texts: Texts, kind: int) -> str:
    """By position, how many candidates are right where those before are; and how many tokens a step would bring."""
    counts: Any = torch.zeros(1)
    for batch in texts.batches(np.flatnonzero(texts.kinds == kind)):
        _, right, wanted = head(texts, batch)
        counts = counts.to(right[0].device) + torch.stack([torch.stack(wanted).all(0), *right]).cumprod(0).flatten(
            1
        ).sum(1)
    shares = (counts[1:] / counts[:-1].clamp(1)).tolist()
    return (
        f"{' '.join(f'{share:.3f}' for share in shares)} ({float(counts.sum() / counts[0].clamp(1)):.2f} tokens a step)"
    )


def train(head: Head, texts: Texts, options: Any) -> None:
    """Train until it is time, on all texts but those that are kept apart."""
    optimizer = torch.optim.AdamW(head.parameters(), options.rate, (0.9, 0.95), weight_decay=0.01)
    chosen = np.flatnonzero((texts.kinds != KEPT) & (texts.lengths - texts.starts > N_DEPTHS))
    start, end, step, shown, epoch = time.monotonic(), began + 60 * options.minutes, 0, 0.0, 0
    while time.monotonic() < end:
        epoch += 1
        for batch in texts.batches(chosen):
            if (left := (end - time.monotonic()) / (end - start)) <= 0:
                break
            optimizer.param_groups[0]["lr"] = options.rate * min(1.0, (step + 1) / 50, 0.02 + 1.3 * left)
            loss, _, _ = head(texts, batch)
            optimizer.zero_grad()
            loss.backward()
            if nn.utils.clip_grad_norm_(head.parameters(), 0.5).isfinite():
                optimizer.step()
            step += 1
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                note(f"step {step}, epoch {epoch}, loss {loss.item():.3f}, kept apart {judged(head, texts, KEPT)}")
    for name, kind in (("kept apart", KEPT), ("trained on", TRAINED)):
        note(f"{step} steps, {epoch} epochs; right by position, {name}: {judged(head, texts, kind)}")


def save(head: Head, path: Path) -> None:
    """Write the head as GGUF, in F16 where it is a matrix, with the target's vocabulary."""
    writer, own = gguf.GGUFWriter(path, head.architecture), head.keys | {"llama.block_count": head.n_layer}
    writer.add_array(f"{head.architecture}.target_layers", list(head.layers))
    for key, field in head.target.fields.items():
        if key.startswith(("tokenizer.", "llama.")):
            kinds, value = [gguf.GGUFValueType(kind) for kind in field.types], own.pop(key, field.contents())
            name = key.replace("llama.", f"{head.architecture}.", 1) if key.startswith("llama.") else key
            writer.add_key_value(name, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for key, value in own.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(key, value)
    for title, weight in head.p.items():
        array = weight.detach().cpu().numpy()
        writer.add_tensor(f"{title}.weight", array.astype(np.float16 if array.ndim > 1 else np.float32))
    writer.add_tensor("d2t", head.ids.cpu().numpy())
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["prompts", "write", "eagle3", "dflash"])
    parser.add_argument("target", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--questions", type=Path, help="for `prompts`: JSON lines, as those of Spec-Bench")
    parser.add_argument("--prompts", type=Path, help="for `write`")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of all texts")
    parser.add_argument("--length", type=int, default=256, help="of an answer, at most")
    parser.add_argument("--texts", type=Path, nargs="+", help="for a head")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which a step ends")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--vocabulary", type=int, default=12288, help="tokens that the head can predict")
    parser.add_argument("--batch", type=int, default=8192, help="tokens in a step of training")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--layers", type=int, default=3, help="of a block draft")
    parser.add_argument("--block", type=int, default=8, help="tokens of a block, with its anchor")
    parser.add_argument("--causal", action="store_true", help="masks see only those before them")
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape
    if options.step in ("prompts", "write"):
        (prompts if options.step == "prompts" else write)(options)
        return
    target = Target(options.target, options.device)
    found = np.concatenate([np.load(path)["tokens"] for path in options.texts])
    counts = torch.from_numpy(np.bincount(found, minlength=len(target.output)))
    ids = counts.topk(options.vocabulary).indices.sort().values
    note(f"{len(found)} tokens, {counts[ids].sum() / len(found):.1%} of which the head can predict")
    head = (Eagle3 if options.step == "eagle3" else DFlash)(target, ids.to(target.device), options)
    texts = Texts(target, head.layers, options.texts, options.batch)
    train(head, texts, options)
    save(head, options.output)


if __name__ == "__main__":
    main()
