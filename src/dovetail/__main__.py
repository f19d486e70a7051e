"""Run the `dovetail` command with `python -m dovetail`."""

from dovetail.cli.main import main

if __name__ == "__main__":
    main()
