"""``python -m commsim``."""

from commsim.cli import main

if __name__ == "__main__":
    main()
