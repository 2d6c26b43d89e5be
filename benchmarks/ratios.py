"""Ways to run the same thing, compared with one another: medians by prompt, and what one is over another."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean, median

Rates = dict[str, dict[str, list[float]]]  # tokens/s by way and prompt
Bars = Mapping[str, tuple[str, str, float]]  # a way over another one, and the least that it should be


def show(rates: Rates, bars: Bars, pair: str) -> dict[str, object]:
    """Print the figures and the bars, and return them."""
    medians = {way: {prompt: median(found) for prompt, found in each.items()} for way, each in rates.items()}
    means = {way: geometric_mean(each.values()) for way, each in medians.items()}
    print(f"\n{pair}, one core each, tokens/s, geometric mean of {len(next(iter(medians.values())))} prompts")
    for way, mean in means.items():
        print(f"  {way:<14} {mean:7.1f}   " + " ".join(f"{rate:6.1f}" for rate in medians[way].values()))
    ratios = {}
    for name, (way, over, least) in bars.items():
        ratios[name] = means[way] / means[over]
        print(f"  {name:<68} {ratios[name]:.3f}  at least {least} {'pass' if ratios[name] >= least else 'MISSED'}")
    return {"tokens_per_s": medians, "ratios": ratios, "runs": rates}
