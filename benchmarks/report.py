"""What a comparison prints, and the document that a recorded result consists of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import N_CTX, example
from benchmarks.measure import ModelFile, git_commit
from benchmarks.summary import Bar, Results
from duo.bench.texts import distinct_share


def print_results(results: Results, baseline: str) -> None:
    """Print the table; the column *ratio* is against the baseline."""
    width = max(len(contestant.name) for contestant in results.contestants)
    columns = "".join(f"{prompt[:11]:>12}" for prompt in results.prompts)
    print(f"{'tokens/s':<{width}}{columns}{'mean':>9}{'ratio':>7}{'peak MB':>9}{'first s':>9}  text")
    for contestant in results.contestants:
        name = contestant.name
        rates = "".join(f"{results.tps(name, prompt):>12.1f}" for prompt in results.prompts)
        ratio = results.ratio(name, baseline)
        shown = f"{results.mean_tps(name) or 0:>9.1f}{'-' if ratio is None else f'{ratio:.2f}':>7}"
        costs = f"{(results.peak_bytes(name) or 0) / 1e6:>9.0f}{results.first_byte_s(name) or 0:>9.2f}"
        parted = ", ".join(f"{prompt} {place}" for prompt, place in results.differences(name).items())
        text = f"differs from character: {parted}" if parted else "same"
        print(f"{name:<{width}}{rates}{shown}{costs}  {text}")
    shares = "".join(f"{distinct_share(results.reference_text(prompt)):>12.0%}" for prompt in results.prompts)
    print(f"{'distinct':<{width}}{shares}")
    for prompt in results.looping():
        print(f"{prompt} loops: left out of the means")


def print_bars(bars: Sequence[Bar]) -> None:
    """Print what was required, and whether it was reached."""
    labels = [bar.name + (f" against {bar.against}" if bar.against else "") for bar in bars]
    width = max(len(label) for label in labels)
    print()
    for label, bar in zip(labels, bars, strict=True):
        figure = "-" if bar.figure is None else f"{bar.figure:.3f}"
        verdict = {True: "pass", False: "MISSED", None: "not measured"}[bar.passed]
        required = f"{'at most' if bar.at_most else 'at least'} {bar.required:g}"
        print(f"{label:<{width}}{figure:>9}  {required:<14}{verdict}")
    print(flush=True)


def circumstances(peers: Path) -> dict[str, Any]:
    """When, of what and on what it is measured."""
    from duo.bench import facts  # noqa: PLC0415 - loads llama.cpp: not for a dry run

    marker = peers.parent / "VERSION"
    version = marker.read_text().strip() if marker.exists() else None
    return {**facts.circumstances(), **git_commit(), "peers_from_llama-cpp-python": version}


def models_json(target: ModelFile, draft: ModelFile) -> dict[str, Any]:
    """The models by name, size and checksum."""
    return {"target": target.as_json(), "draft": draft.as_json()}


def results_json(results: Results, n_tokens: int) -> dict[str, Any]:
    """Every figure behind a table, with the commands that were run."""
    document = results.as_json()
    task = example(n_tokens)
    for contestant in results.contestants:
        command = contestant.command(task)
        document["contestants"][contestant.name]["command"] = [Path(command[0]).name, *command[1:]]
    return document


def settings_json(n_tokens: int, repetitions: int) -> dict[str, Any]:
    """What all contestants were asked for."""
    return {"n_tokens": n_tokens, "repetitions": repetitions, "n_ctx": N_CTX}
