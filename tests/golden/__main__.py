"""Write the expected help texts and reports, and all options into docs/configuration.md."""

from __future__ import annotations

from tests.golden import HELP, help_text
from tests.golden.configuration import CONFIGURATION, SETTINGS, settings, with_options
from tests.golden.reports import REPORTS, reports


def main() -> None:
    SETTINGS.write_text(settings(), encoding="utf-8")
    for arguments, path in HELP.items():
        path.write_text(help_text(*arguments), encoding="utf-8")
    REPORTS.write_text(reports(), encoding="utf-8")
    CONFIGURATION.write_text(with_options(CONFIGURATION.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
