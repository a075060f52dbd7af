"""Spark on both sides: a DataFrame goes in, an answer comes out as a DataFrame.

Run: python examples/spark_dataframe.py [folder]
"""

import sys
import tempfile

import righttime as rt


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("event", "id BIGINT, kind STRING", partition_by=["kind"])
        frame = wh.spark.range(10_000).selectExpr("id", "if(id % 3 = 0, 'click', 'view') AS kind")

        with wh.producer(name="batch") as load:
            load.insert_df("event", frame)  # computed and written by the executors, now
            load.insert("event", (10_000, "click"))
            load.commit(materialize=True)  # both in one commit

        by_kind = wh.sql("SELECT kind, count(*) AS events FROM event GROUP BY kind").df
        for row in by_kind.orderBy("kind").collect():
            print(row.kind, row.events)
        print("stored in Delta version", wh.status().tables[0].version)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
