"""Write them anew."""

from __future__ import annotations

from tests.unit.bench.golden import FORMATS, GOLDEN


def main() -> None:
    for name, text in FORMATS.items():
        (GOLDEN / f"results.{name}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
