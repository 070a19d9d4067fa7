"""`python -m preheat` is the `preheat` program."""

from preheat.cli import main

if __name__ == "__main__":
    main()
