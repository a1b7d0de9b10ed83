"""Results on the page: tables, plots and files. Nothing here computes a result."""
