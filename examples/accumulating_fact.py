"""An accumulating fact: an order is one row, and the row changes as the order is accepted, packed, sent and paid, all before it is ever stored.

Run: python examples/accumulating_fact.py [folder]
"""

import sys
import tempfile
from datetime import datetime, timedelta

from deltalake import DeltaTable

import righttime as rt

ORDER = "order_id BIGINT, cents BIGINT, ordered TIMESTAMP, accepted TIMESTAMP, packed TIMESTAMP, sent TIMESTAMP, paid TIMESTAMP"
STEPS = ("accepted", "packed", "sent", "paid")
ORDERS = range(1, 1001)
BEGIN = datetime(2026, 5, 1, 12, 0)


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("order_fact", ORDER, keys=["order_id"], unique=True)

        with wh.producer(name="shop") as load:
            load.insert_many("order_fact", [{"order_id": number, "cents": 100 * number, "ordered": BEGIN} for number in ORDERS])
            first = load.commit()

            for minute, step in enumerate(STEPS, start=1):
                for number in ORDERS:
                    load.update("order_fact", set={step: BEGIN + timedelta(minutes=minute)}, where={"order_id": number})
                load.commit()
                # Each answer shows every order once, as it is now, and has a receipt that verifies.
                answer = wh.read("order_fact", columns=["order_id", step])
                assert len(answer) == len(ORDERS) and None not in answer.arrow()[step].to_pylist()
                assert answer.receipt.verify()
                print(f"{step}: {len(answer)} orders, last commit inside: {answer.receipt.cut[0].last_inside.number}")

        # The older view is still there: nothing was stored, so every version of a row is known with its time.
        before = wh.read("order_fact", as_of=first.commit.time_us)
        assert before.arrow()["paid"].null_count == len(ORDERS)

        wh.materialize()
        stored = DeltaTable(f"{folder}/tables/order_fact")
        rows = stored.to_pyarrow_table()
        assert sorted(rows["order_id"].to_pylist()) == list(ORDERS)
        assert all(rows[step].null_count == 0 for step in STEPS)
        print(f"{len(ORDERS) * len(STEPS)} updates; stored: version {stored.version()}, {rows.num_rows} rows in {len(stored.file_uris())} file")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
