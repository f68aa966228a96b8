"""`python -m ppojob_operator`."""

from ppojob_operator.handlers import main

if __name__ == "__main__":
    main()
