"""Receipts: keep them, hand them over, verify them; a changed one is refused.

Run: python examples/receipts.py [folder]
"""

import json
import sys
import tempfile

import righttime as rt


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("stock", "sku INT, pieces INT")
        with wh.producer(name="depot") as load:
            load.insert_many("stock", [(1, 10), (2, 20)])
            load.commit()
            answer = wh.read("stock")
            load.insert("stock", (3, 30))
            load.commit()

        # The warehouse has moved on; the receipt still stands for what was true then.
        paper = answer.receipt.to_json()
        print("rows then:", json.loads(paper)["rows"], "rows now:", len(wh.read("stock")))
        print("verified:", bool(wh.verify(paper)))

        try:
            wh.verify(paper.replace('"rows":2', '"rows":3'))
        except rt.ReceiptForged as error:
            print("refused:", error.code)
        print("receipts kept:", len(wh.receipts()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
