"""Asking: SQL, a contract on its freshness, the answer and how it is recognised again.

In: a query's text with its freshness and parameters, and the warehouse below.
Out: what the query reads, what it promises, the digest of its answer, and PEP 249 connections.
Promise: text that could change anything is refused before an engine sees it, and no answer is staler than its contract without saying so.
"""
