"""An existing loader and an existing report: only the line that connects has changed.

Run: python examples/dbapi_loader.py [folder]
"""

import sys
import tempfile

import righttime as rt


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("customer", "id INT, name STRING, city STRING", keys=["id"])

        with rt.connect(wh, name="crm", policy=rt.OnDemand()) as loader:
            cursor = loader.cursor()
            cursor.execute("INSERT INTO customer VALUES (?, ?, ?)", (1, "Ada", "London"))
            cursor.executemany("INSERT INTO customer (id, name, city) VALUES (?, ?, ?)", [(2, "Grace", "New York"), (3, "Edsger", "Nuenen")])
            loader.commit()
            cursor.execute("INSERT INTO customer VALUES (4, 'Nobody', NULL)")
            loader.rollback()

            with rt.connect(wh) as report:
                report.ensure_accuracy("0s", "customer")
                rows = report.cursor()
                rows.execute("SELECT name, city FROM customer WHERE id < ? ORDER BY id", (10,))
                print([column[0] for column in rows.description or ()])
                for row in rows:
                    print(row)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
