"""The demo: a shop that sells and ships orders while four readers ask, each for the freshness it needs.

In: a number of seconds.
Out: a live display, then a table of answers with their receipts, and checks.
Promise: it ends with exit code 0 only if every receipt verified and every answer is exact.
"""
