"""A machine with GPUs that is not there: CUDA, libnccl, NVML and sysfs in Python, for runs without a GPU.

Memory of a GPU is memory of the host, data really move between the processes of the ranks, time is that of a clock
which only a stated law advances, and every byte is counted where a real machine counts it. What can go wrong can be
ordered. `environment` gives the variables with which `commsim` works on it.
"""
