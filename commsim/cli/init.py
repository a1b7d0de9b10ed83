"""``commsim init``."""


def init() -> None:
    """Todo."""
