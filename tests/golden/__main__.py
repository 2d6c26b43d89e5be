"""Write the expected outputs and reports, and what docs/ has of options and predictions."""

from tests.documents.documents import RECIPES, with_predictions
from tests.golden.configuration import CONFIGURATION, SETTINGS, settings, with_options
from tests.golden.doctor import DOCTOR, doctor
from tests.golden.reports import REPORTS, reports
from tests.golden.transcript import TRANSCRIPT, transcript


def main() -> None:
    SETTINGS.write_text(settings(), encoding="utf-8")
    TRANSCRIPT.write_text(transcript(), encoding="utf-8")
    DOCTOR.write_text(doctor(), encoding="utf-8")
    REPORTS.write_text(reports(), encoding="utf-8")
    RECIPES.write_text(with_predictions(RECIPES.read_text(encoding="utf-8")), encoding="utf-8")
    CONFIGURATION.write_text(with_options(CONFIGURATION.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
