"""Classes of the JVM that Spark runs in.

In: full names.
Out: classes, to call their static methods and constructors.
Promise: one question to the JVM for each. Asked for package by package, as in `jvm.org.apache.spark`, each package is looked for in all jars as if it were
a class, which takes a millisecond and more.
"""

from typing import Any

from pyspark.sql import SparkSession


def java_class(session: SparkSession, name: str) -> Any:
    """Return a class by its full name."""
    return getattr(session._jvm, name)


def scala_object(session: SparkSession, name: str) -> Any:
    """Return an `object` of Scala by its full name."""
    return getattr(java_class(session, f"{name}$"), "MODULE$")
