"""`python -m ppojob_cli`: the command line without its script."""

from ppojob_cli.main import main

if __name__ == "__main__":
    main(prog_name="ppojob")
