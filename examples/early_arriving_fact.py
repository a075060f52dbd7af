"""An early-arriving fact: a sale comes before the product it refers to. A placeholder stands in for the product until the real one comes.

Run: python examples/early_arriving_fact.py [folder]
"""

import sys
import tempfile

import righttime as rt

BY_CATEGORY = """
SELECT coalesce(p.category, 'not known yet') AS category, count(*) AS sales, sum(s.cents) AS cents
FROM sale s JOIN product p USING (sku) GROUP BY p.category ORDER BY p.category"""


def sell(till: rt.Producer, seen: set[int], sku: int, cents: int) -> None:
    """Commit a sale, together with a placeholder for its product: no query sees the one without the other."""
    if sku not in seen:
        till.upsert("product", {"sku": sku})  # the key and nothing else: a row that is there stays as it is
        seen.add(sku)
    till.insert("sale", (sku, cents))
    till.commit()


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("product", "sku INT, title STRING, category STRING", keys=["sku"])
        wh.create_table("sale", "sku INT NOT NULL, cents BIGINT")

        with wh.producer(name="till") as till, wh.producer(name="office") as office:
            office.upsert("product", (1, "A Pattern Language", "books"))
            office.commit()

            seen: set[int] = set()
            for sku, cents in ((1, 4900), (2, 800), (2, 850), (3, 1200)):
                sell(till, seen, sku, cents)
            early = wh.sql(BY_CATEGORY)
            print(early.rows())
            assert early.receipt.verify()
            wh.materialize()  # placeholders may be stored; that changes nothing for what follows

            # The office need not know which products have a placeholder: an upsert fills it, or inserts the row.
            office.upsert("product", (2, "Earl Grey", "tea"))
            office.upsert("product", (4, "Blue Train", "music"))
            office.commit()
            sell(till, seen, 4, 1500)
            later = wh.sql(BY_CATEGORY)
            print(later.rows())
            assert later.receipt.verify()

            # Facts were never touched. Every sale is in every answer, once, also while placeholders stand in.
            assert [sum(sales for _, sales, _ in answer) for answer in (early, later)] == [4, 5]
            assert sorted(wh.read("product", columns=["sku"])) == [(1,), (2,), (3,), (4,)]
            print("still waiting for:", wh.sql("SELECT sku FROM product WHERE category IS NULL").rows())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
