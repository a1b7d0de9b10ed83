"""One rank of ``commsim measure``: ``torchrun --nproc-per-node 8 validation/run_torch.py SCENARIO [OPTIONS]``."""

import sys

from commsim.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "measure")
    main()
