"""Write the expected texts, and the help text into the README."""

from __future__ import annotations

from tests.golden import HELP, README, help_text, with_help


def main() -> None:
    for command, path in HELP.items():
        path.write_text(help_text(*command), encoding="utf-8")
    text = HELP[()].read_text(encoding="utf-8")
    README.write_text(with_help(README.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
