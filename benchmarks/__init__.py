"""Figures, measured: one module per figure, both sides in one run.

In: rows made from a seed, a fresh warehouse, a PostgreSQL server and Delta tables made for the run.
Out: a table on the terminal and `results/<date>.json`.
Promise: both sides of a ratio are measured by the same process on the same rows; a goal that is missed is said to be missed.
"""
