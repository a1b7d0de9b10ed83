"""Files that are either complete or not there, as reports write them."""

from commsim.files import write_atomically

__all__ = ["write_atomically"]
