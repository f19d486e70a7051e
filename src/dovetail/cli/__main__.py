"""`python -m dovetail.cli`: the same as the installed command."""

from dovetail.cli.main import main

if __name__ == "__main__":
    main()
