"""Sales of a shop: from the changes of three source tables to a star schema, a fact table and a dimension with its history."""

import righttime as rt

# On demand: changes move when a query needs them. Others: refresh="immediate", refresh="every 5m".
sales = rt.Flow("sales", refresh="on_demand")

# The sources. What a row is identified by is what updates and deletes name.
purchases = sales.stream("purchase", "purc_id BIGINT, day DATE NOT NULL, store STRING NOT NULL", keys=["purc_id"])
lines = sales.stream("line", "purc_id BIGINT, item_id INT, qty INT, price DECIMAL(9, 2)", keys=["purc_id", "item_id"])
items = sales.stream("item", "item_id INT, title STRING, category STRING", keys=["item_id"])

# The dimension: a row for each version of an item, with a key of its own and the time it was valid.
versions = items.history(keys=["item_id"], key="item_sk", start="valid_from", end="valid_to")
versions.into("item_dim", keys=["item_sk"])

# The fact: each line with the version of its item that was valid when the line was committed; 0 if the item was not known then.
sold = (
    lines.expect("positive", "qty > 0", otherwise="drop")
    .as_of(versions, on="item_id", take=["item_sk"])
    .derive(item_sk="coalesce(item_sk, 0L)", amount="qty * price")
    .join(purchases, on="purc_id")
)
sold.aggregate(by=["day", "store", "item_sk"], qty="sum(qty)", amount="sum(amount)", lines="count(*)").into("store_sales", keys=["day", "store", "item_sk"])
