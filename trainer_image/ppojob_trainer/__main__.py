"""`python -m ppojob_trainer COMMAND`: what the containers of a job run."""

import sys

from ppojob_trainer.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
