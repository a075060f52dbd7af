"""The first program: rows go in one by one, a Spark query sees them at once, and the answer has a receipt.

Run: python examples/quickstart.py [folder]
"""

import sys
import tempfile
from datetime import datetime

import righttime as rt


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("sale", "sku INT, qty INT, at TIMESTAMP", keys=["sku"])

        with wh.producer(name="till") as load:
            for sku in range(1, 6):
                load.insert("sale", {"sku": sku, "qty": 2 * sku, "at": datetime(2025, 5, 1, 12, sku)})
            load.commit()

        answer = wh.sql("SELECT count(*) AS sales, sum(qty) AS items FROM sale", freshness="0s")
        print(answer.rows())

        receipt = answer.receipt
        table = receipt.tables[0]
        print(f"{table.rows_hot} rows from memory, {table.rows_stored} from the warehouse")
        print(f"verified by {receipt.verify().method}: {bool(receipt.verify())}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
