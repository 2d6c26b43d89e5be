"""`python -m duo` is `duo`."""

from duo.cli.main import main

if __name__ == "__main__":
    main()
