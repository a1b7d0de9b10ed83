"""All-reduce kernels of serving frameworks: which one runs at a size, and how long it takes."""
