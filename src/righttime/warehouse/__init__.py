"""Where stored rows live: ordinary tables of an existing format, one version per commit.

In: rows and file lists from the mover, version numbers from the ledger.
Out: exact file lists of any kept version, to Spark and Arrow readers.
Promise: what `commit` returned survives power loss, any reader of the format can read it, and a kept version stays readable as it was.
"""
