"""commsim: simulates and prices collective communication.

>>> import commsim as cs                                            # doctest: +SKIP
>>> cs.run("scenarios/allreduce-8-h100.yaml").to_frame()            # doctest: +SKIP
"""

__version__ = "0.1.0"
