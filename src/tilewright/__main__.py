"""`python -m tilewright` is the `tilewright` command."""

from tilewright.frontends.cli.main import main

if __name__ == "__main__":
    main()
