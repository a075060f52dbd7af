"""The same flow as a user would write it on Structured Streaming: foreachBatch with upserts into Delta tables.

In: folders of Parquet files with changes, the dimensions, the staging tables `purchase` and `line` and the target as Delta tables.
Out: the target, brought up to date batch by batch.
Promise: it does the flow's work with what Spark and delta-rs offer: keep the staging tables by MERGE, compute the touched tickets anew, MERGE them into the
target. Dimensions are taken as fixed and broadcast, which ours does not assume; there is a state per batch, not per transaction.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.flows_data import DIMENSIONS, LINE_KEYS, PURCHASE_KEYS, Changes

KEYS = {"purchase": ["purc_id"], "line": ["purc_id", "item_id"], "store_sales": ["ticket", "item_sk", "promo_sk"]}
_DDL = {
    "purchase": "purc_id INT, " + ", ".join(f"{name} STRING" for name in PURCHASE_KEYS),
    "line": "purc_id INT, item_id STRING, promo_id STRING, qty INT, price INT, cost INT",
}


class Rival:
    """A folder with the tables, and the streaming job over it."""

    def __init__(self, spark: SparkSession, folder: Path, dimensions: Changes) -> None:
        self._spark, self._folder = spark, folder
        self._files, self._begun_s = 0, int(time.time())
        for name in _DDL:
            (folder / "changes" / name).mkdir(parents=True)
        self._dimensions = {name: self._dimension(name, rows) for name, rows in dimensions.items()}

    def _dimension(self, name: str, rows: pa.Table) -> DataFrame:
        path = self._folder / f"{name}.parquet"
        pq.write_table(rows, path)
        return F.broadcast(self._spark.read.parquet(str(path)).drop(*(() if name in ("item", "time") else DIMENSIONS[name][2:])))

    def load_history(self, history: Changes, sales: pa.Table) -> None:
        """Make the tables with what was sold before."""
        for name, rows in history.items():
            write_deltalake(self._path(name), rows.drop_columns(["_change_type"]))
        write_deltalake(self._path("store_sales"), sales)

    def feed(self, transactions: Sequence[Changes]) -> None:
        """Write the changes, a file for each transaction and table."""
        for changes in transactions:
            self._files += 1
            for name, rows in changes.items():
                numbered = rows.append_column("_number", pa.repeat(pa.scalar(self._files, pa.int64()), rows.num_rows))
                path = self._folder / "changes" / name / f"{self._files:06d}.parquet"
                pq.write_table(numbered, path)
                # Spark takes files in the order of their times, and those of one millisecond in any.
                os.utime(path, times=(self._begun_s + self._files, self._begun_s + self._files))

    def run(self, *, files_each: int | None = None) -> None:
        """Take all files there are, so many of each table in a batch, all in one without a number."""
        streams = [self._stream(name, files_each) for name in _DDL]
        joint = streams[0].unionByName(streams[1], allowMissingColumns=True)
        writer = joint.writeStream.foreachBatch(self._upsert).option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    def sales(self) -> pa.Table:
        """Return the target."""
        return DeltaTable(self._path("store_sales")).to_pyarrow_table()

    def _stream(self, name: str, files_each: int | None) -> DataFrame:
        reader = self._spark.readStream.schema(f"{_DDL[name]}, _change_type STRING, _number BIGINT")
        if files_each is not None:
            reader = reader.option("maxFilesPerTrigger", files_each)
        return reader.parquet(str(self._folder / "changes" / name)).withColumn("_table", F.lit(name))

    def _upsert(self, batch: DataFrame, number: int) -> None:
        """Bring one batch into the staging tables, compute its tickets anew, and bring them into the target."""
        rows = batch.toArrow()  # read once; a batch is small against the tables
        newest = {name: _newest(self._spark.createDataFrame(rows), name) for name in _DDL}
        gone = self._gone(newest)
        for name, changes in newest.items():
            self._merge(name, changes.withColumn("_gone", F.col("_change_type") == "delete").drop("_change_type").toArrow())
        tickets = F.broadcast(newest["line"].select("purc_id").union(newest["purchase"].select("purc_id")).distinct())
        self._merge("store_sales", self._computed(tickets).withColumn("_gone", F.lit(False)).unionByName(gone, allowMissingColumns=True).toArrow())

    def _computed(self, tickets: DataFrame) -> DataFrame:
        lines, purchases = (self._read(name).join(tickets, "purc_id") for name in ("line", "purchase"))
        for key, name in PURCHASE_KEYS.items():
            purchases = purchases.join(self._dimensions[name], key)
        for key, name in LINE_KEYS.items():
            lines = lines.join(self._dimensions[name], key)
        sold = lines.join(purchases, "purc_id").withColumnRenamed("purc_id", "ticket")
        by = ["ticket", "item_sk", "promo_sk", "date_sk", "time_sk", "cust_sk", "store_sk", "class", "hour"]
        return sold.groupBy(*by).agg(F.sum("qty").alias("qty"), F.sum(F.expr("qty * price")).alias("amount"), F.sum(F.expr("qty * cost")).alias("cost"))

    def _gone(self, newest: dict[str, DataFrame]) -> DataFrame:
        """Return the keys of the target's rows that lose their line."""
        deleted = newest["line"].where("_change_type = 'delete'").join(self._dimensions["item"], "item_id").join(self._dimensions["promotion"], "promo_id")
        return deleted.select(F.col("purc_id").alias("ticket"), "item_sk", "promo_sk", F.lit(True).alias("_gone"))

    def _read(self, name: str) -> DataFrame:
        return self._spark.read.parquet(*DeltaTable(self._path(name)).file_uris())

    def _merge(self, name: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        columns = [column for column in rows.column_names if column != "_gone"]
        values = {column: f"s.{column}" for column in columns}
        on = " AND ".join(f"t.{key} = s.{key}" for key in KEYS[name])
        merge: Any = DeltaTable(self._path(name)).merge(rows, predicate=on, source_alias="s", target_alias="t")
        merge.when_matched_delete("s._gone").when_matched_update(values).when_not_matched_insert(values, predicate="NOT s._gone").execute()

    def _path(self, name: str) -> str:
        return str(self._folder / f"table_{name}")


def _newest(batch: DataFrame, name: str) -> DataFrame:
    """Return the last change of each row in a batch."""
    order = Window.partitionBy(*KEYS[name]).orderBy(F.col("_number").desc())
    columns = [part.split()[0] for part in _DDL[name].split(", ")]
    chosen = batch.where(F.col("_table") == name).withColumn("_place", F.row_number().over(order)).where("_place = 1")
    return chosen.select(*columns, "_change_type")
