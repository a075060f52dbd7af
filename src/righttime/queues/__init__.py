"""Streams: the ordered changes of source tables, durable from the moment they are accepted.

In: changes from code that feeds them, one source transaction at a time.
Out: change tables and Parquet segments of any stretch of commit times, for flows.
Promise: an acknowledged append is there after a crash, whole and over all its streams; each removed row is the exact negative of an earlier one.
"""
