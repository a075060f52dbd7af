"""The bulk road: what runs on Spark, and the one owner of its session.

In: file lists of a pinned snapshot, DataFrames of users.
Out: relations to query, Parquet files to register.
Promise: importing this package starts nothing; Spark and Java are looked for on first need.
"""
