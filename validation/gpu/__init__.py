"""A machine with one GPU: the script that measures it, and the page of what it brought home."""
