"""The reference engine: the papers' pipeline of operator threads, and the oracle of declared flows, in plain Python.

In: declared flows and changes as plain rows, or operators put together by hand.
Out: what the Spark engine must also give, and logs of commits and begins with their checker.
Promise: slow, small, and obviously right; no part of the product runs on it.
"""
