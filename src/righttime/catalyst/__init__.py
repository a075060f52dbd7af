"""Rows between their commit and the warehouse: seen at once, stored in bulk.

In: rows of producers, with commit times; demands of queries.
Out: slices of hot rows for a cut; log records and bulk loads for the warehouse.
Promise: a committed row is in exactly one place for every query, and bounded memory holds it.
"""
