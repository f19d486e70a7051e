"""`python -m dovetail`: the same as the installed command."""

from dovetail.cli.main import main

if __name__ == "__main__":
    main()
