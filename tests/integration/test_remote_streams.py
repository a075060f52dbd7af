"""Streams of a service, fed and read by other processes: as in one process, and once whatever breaks in between."""

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import righttime as rt
from righttime.errors import (
    AppendUnknown,
    BadMessage,
    BadStream,
    ImageDiffers,
    MessageTooLarge,
    NameTaken,
    NotATable,
    NotHere,
    RightTimeError,
    RowExists,
    StreamAlone,
    StreamExists,
    UnknownStream,
    WarehouseClosed,
)
from righttime.flight.failures import failure_of
from righttime.flight.frames import read_frame, write_frame
from righttime.flight.given import write_given
from righttime.flight.group import open_service
from righttime.flight.server import FlightService
from righttime.flight.warehouse import RemoteWarehouse, open_remote
from righttime.pipeline.spark import SparkOwner
from righttime.queues.declared import Appended
from righttime.queues.stream import Stream
from tests.support.crash import engine_of
from tests.support.proxy import Proxy
from tests.support.services import Service

BOUND = 4_000_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("streams") / "wh", message_bytes_max=BOUND, stream_log_bytes=20_000) as running:
        yield running


@pytest.fixture
def wh(service: Service) -> Iterator[RemoteWarehouse]:
    with service.connect() as warehouse:
        yield warehouse


@pytest.fixture
def line(wh: RemoteWarehouse, request: pytest.FixtureRequest) -> Stream:
    """A stream of the test's own."""
    return wh.create_stream(f"line_{abs(hash(request.node.name))}", "id INT, qty INT", keys=["id"])


def ids(stream: Stream) -> list[int]:
    return list(stream.changes().column("id").to_pylist())


def test_a_stream_is_created_fed_and_read_as_in_one_process(wh: RemoteWarehouse, tmp_path: Path) -> None:
    """Every call of the handle, here and there: same declarations, numbers, changes, letters and errors."""
    with rt.open(tmp_path / "here") as here:
        assert _story(wh) == _story(here)
    assert {"story", "story_events"} <= set(wh.streams())


def _story(wh: Any) -> list[Any]:
    told: list[Any] = []
    story = wh.create_stream("Story", "id INT NOT NULL, name VARCHAR(5), at TIMESTAMP", keys=["id"], on_bad="dead_letter", comment="a story")
    told += [story.name, story.keys, story.schema, story.last]
    events = wh.create_stream("story_events", pa.schema([("id", pa.int64())]), times="source", tolerance="30s")
    told += [
        events.keys,
        events.schema,
        wh.create_stream("story_events", "id BIGINT", times="source", tolerance=30, if_not_exists=True).schema == events.schema,
    ]
    told += [story.insert([{"id": 1, "name": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}, {"id": 2, "name": "longer"}], transaction="T1")]
    told += [story.update([{"id": 1, "name": "b", "at": None}]), story.update([({"id": 1, "name": "x"}, {"id": 1, "name": "y"})])]
    told += [story.append([]), story.append(pa.table({"id": pa.array([], pa.int8())})), story.delete(pa.table({"id": [1]}), transaction="T2")]
    told += [story.dead_letters().drop_columns(["time"]).to_pylist(), story.replay(), story.discard([1]), story.discard(), story.dead_letters().num_rows]
    start = datetime(2026, 3, 1, tzinfo=UTC)
    told += [events.insert([{"id": 7}], time=start), events.heartbeat(start + timedelta(hours=1)), events.append([], time=start + timedelta(hours=2))]
    told += [story.changes().drop_columns(["_commit_timestamp"]).to_pylist(), events.changes(after=start - timedelta(1), up_to=start).to_pylist()]
    last = story.last
    told += [last.number, last.transaction, events.last]
    wrong_calls: list[Callable[[], object]] = [
        lambda: wh.stream("nowhere"),
        lambda: wh.create_stream("story", "id INT"),
        lambda: wh.create_stream("bad", "id NOTHING"),
        lambda: wh.create_stream("story_events", "id BIGINT", if_not_exists=True),
        lambda: wh.append({"story": [], "STORY": []}),
        lambda: wh.append({"story_events": [{"id": 1}], "nowhere": []}, time=start),
        lambda: story.insert({"id": 1}),
        lambda: story.update([{"id": 1}]),
        lambda: story.insert([{"id": 1}], time=5),
        lambda: events.insert([{"id": 1}]),
        lambda: events.insert([{"id": 1}], time=start),
        lambda: story.replay([99]),
        lambda: story.heartbeat(5),
        lambda: story.changes(after="now"),
    ]
    for wrong, call in enumerate(wrong_calls):
        with pytest.raises(RightTimeError) as caught:
            call()
        told.append((wrong, type(caught.value), str(caught.value)))
    return [_without_times(one) for one in told]


def _without_times(one: Any) -> Any:
    return (dict(one.numbers), one.rows, one.rejected) if isinstance(one, Appended) else one


def test_a_transaction_over_several_streams_is_one_commit(wh: RemoteWarehouse, line: Stream) -> None:
    """All of it or nothing, at one commit time."""
    other = wh.create_stream(f"{line.name}_other", "id INT", keys=["id"])
    done = wh.append({line.name: [{"id": 1}], other.name: pa.table({"id": [1, 2]})}, transaction="T1")
    assert (dict(done.numbers), done.rows) == ({line.name: 1, other.name: 1}, 3)
    assert line.last == other.last and line.last is not None and (line.last.time_us, line.last.transaction) == (done.time_us, "T1")
    with pytest.raises(RowExists):
        wh.append({line.name: [{"id": 5}], other.name: [{"id": 2}]})
    assert (ids(line), ids(other)) == ([1], [1, 2])


def test_many_rows_are_one_commit_and_too_many_are_refused_before_they_are_sent(line: Stream) -> None:
    """As a table and as mappings; more than the service takes in a message is an error with a name, and changes nothing."""
    rows = 100_000
    assert line.insert(pa.table({"id": pa.array(range(rows), pa.int32())})).numbers == {line.name: 1}
    assert line.delete([{"id": number} for number in range(rows)]).rows == rows
    with pytest.raises(MessageTooLarge, match=str(BOUND)):
        line.insert(pa.table({"id": pa.array(range(rows * 8), pa.int32())}))
    assert (line.last and line.last.number, len(ids(line))) == (2, 2 * rows)


def test_two_clients_feed_one_stream_at_once(service: Service, line: Stream) -> None:
    """Their commits have one order, each has its own in it, and none is missing."""
    made: list[list[Appended]] = [[], []]

    def feed(which: int) -> None:
        with service.connect() as wh:
            stream = wh.stream(line.name)
            made[which] += [stream.insert([{"id": 1000 * which + number}], transaction=f"{which}-{number}") for number in range(25)]

    threads = [threading.Thread(target=feed, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    numbers = [[done.numbers[line.name] for done in one] for one in made]
    assert sorted(numbers[0] + numbers[1]) == list(range(1, 51)) and all(one == sorted(one) for one in numbers)
    changes = line.changes()
    assert changes.column("_commit_version").to_pylist() == list(range(1, 51))
    assert [one for one in changes.column("id").to_pylist() if one < 1000] == list(range(25))


def test_a_table_is_tapped_from_elsewhere(wh: RemoteWarehouse) -> None:
    """What was there and what comes is in the stream when it is read; nobody appends to it."""
    wh.create_table("customer", "id INT, city STRING", keys=["id"], unique=True)
    with wh.producer(name="crm") as load:
        load.insert("customer", (1, "Aarhus"))
        load.commit()
        tapped = wh.tap("customer")
        assert (tapped.keys, ids(tapped)) == (("id",), [1])
        load.insert("customer", (2, "Malmo"))
        load.commit()
        assert ids(tapped) == [1, 2]
    with pytest.raises(BadStream, match="change the table"):
        tapped.insert([{"id": 3}])
    with pytest.raises(StreamExists):
        wh.tap("customer")
    with pytest.raises(NameTaken):
        wh.create_stream("customer_x", "id INT").name and wh.create_table("customer_x", "id INT")


def test_the_streams_that_a_flow_declares_are_made_and_the_flow_runs_elsewhere(wh: RemoteWarehouse) -> None:
    flow = rt.Flow("declared")
    flow.stream("declared_line", "id INT", keys="id").into("declared_copy", keys="id")
    assert [stream.name for stream in wh.create_streams(flow)] == ["declared_line"]
    assert wh.create_streams(flow)[0].insert([{"id": 1}]).rows == 1
    with pytest.raises(NotHere, match="run a flow"):
        wh.run(flow)


def test_a_closed_handle_says_so(service: Service, line: Stream) -> None:
    wh = service.connect()
    stream = wh.stream(line.name)
    wh.close()
    for call in (lambda: stream.insert([{"id": 1}]), stream.changes, stream.dead_letters, lambda: stream.last, lambda: wh.stream(line.name), wh.streams):
        with pytest.raises(WarehouseClosed):
            call()


def test_a_group_refuses_streams(service: Service) -> None:
    """A stream is at one of its services; the error says where to go."""
    with open_service(f"{service.address},127.0.0.1:1", reconnect_s=0.1) as group:
        for call in (lambda: group.create_stream("s", "id INT"), lambda: group.stream("s"), group.streams, lambda: group.append({}), lambda: group.tap("t")):
            with pytest.raises(StreamAlone, match="its own address"):
                call()


BAD: list[tuple[str, dict[str, Any], list[bytes]]] = [
    ("stream.schema", {}, []),
    ("stream.cut", {"stream": "x"}, []),
    ("stream.create", {"name": "x"}, []),
    ("stream.create", {"name": "x", "keys": [], "times": "t", "on_bad": "o", "if_not_exists": False}, [b"noise"]),
    ("stream.append", {}, []),
    ("stream.append", {"append": "x", "mark": 0, "changes": []}, []),
    ("stream.append", {"append": "0" * 32, "changes": []}, []),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": [5]}, []),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": [], "time": "now"}, []),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": []}, [b"left"]),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": [{"stream": "x", "given": {"arrow": True}}]}, [b"noise"]),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": [{"stream": "x", "given": {"shapes": [{"names": ["a"], "kinds": ["int"]}]}}]}, [b"\0", b""]),
    ("stream.append", {"append": "0" * 32, "mark": 0, "changes": [{"stream": "x", "given": {"shapes": []}}]}, [b"\7"]),
    ("stream.replay", {"append": "0" * 32, "mark": 0, "stream": "x", "numbers": "[[]]"}, []),
    ("stream.discard", {"append": "0" * 32, "mark": 0, "stream": "x", "numbers": "noise"}, []),
    ("stream.heartbeat", {"stream": "x"}, []),
    ("stream.tap", {"table": 5}, []),
    ("stream.noise", {}, []),
]


@pytest.mark.parametrize(("action", "header", "parts"), BAD)
def test_what_is_no_message_of_a_stream_is_refused(wh: RemoteWarehouse, action: str, header: dict[str, Any], parts: list[bytes]) -> None:
    with pytest.raises(BadMessage):
        wh._transport.call(action, header, parts)


def test_broken_messages_never_break_the_service(service: Service, wh: RemoteWarehouse, line: Stream) -> None:
    """Bits that flip anywhere in an append: taken as what they say, or refused with a code; the service goes on."""
    dice = random.Random(7)
    rows = [{"id": 1, "qty": 2}, {"id": 2, "qty": "x"}, {"id": 3, "_change_type": "delete"}, (1, 2), {"id": [1, b"x"]}]
    for number in range(150):
        given, parts = write_given(rows if number % 2 else pa.table({"id": [1, 2], "text": ["a", None]}))
        header = {"append": f"{number:032x}", "mark": 0, "changes": [{"stream": line.name, "given": given}]}
        frame = bytearray(write_frame(header, parts).to_pybytes())
        for _ in range(dice.randint(1, 6)):
            frame[dice.randrange(8, len(frame))] ^= 1 << dice.randrange(8)
        code = _ask(wh, "stream.append", bytes(frame))
        assert code != "service.failed", service.logs()[-3000:]
    for ticket in ({"stream": 5}, {"stream": "nowhere", "letters": True}, {"stream": line.name}, {"stream": line.name, "after": 2**80, "up_to": 0}):
        with pytest.raises((BadMessage, UnknownStream)):
            wh._transport.rows(ticket)
    assert line.insert([{"id": 10**6}]).rows == 1


def _ask(wh: RemoteWarehouse, action: str, frame: bytes) -> str | None:
    import pyarrow.flight as flight

    (result,) = wh._transport._client.do_action(flight.Action(action, frame))
    answer = read_frame(result.body, bytes_max=1 << 30).header
    return failure_of(answer["error"]).code if "error" in answer else None


@pytest.mark.parametrize("seed", [1, 2])
def test_connections_that_break_anywhere_double_and_lose_nothing(service: Service, line: Stream, seed: int) -> None:
    """In the middle of messages and of answers; events without keys, of which a second one would be taken."""
    with Proxy(service.port, seed=seed, bytes_range=(200, 6000), grace_bytes=1500) as proxy, open_remote(proxy.address, reconnect_s=30) as wh:
        events = wh.create_stream(f"{line.name}_events", "id INT, text STRING", if_not_exists=True)
        for number in range(25):
            assert events.insert([{"id": number, "text": "x" * 50}]).numbers == {events.name: number + 1}
        proxy.behave()
        assert ids(events) == list(range(25))
        assert proxy.cuts > 0, f"seed {seed}"


# Where the service dies, at which arrival: durable and not answered; the same with the id in what the next file of the log begins with, and nowhere else.
POINTS = [("feed.synced", 3, 10**6), ("feed.removed", 3, 1)]


@pytest.mark.parametrize(("point", "arrival", "log_bytes"), POINTS)
def test_a_service_that_dies_between_commit_and_answer_has_it_once(tmp_path: Path, point: str, arrival: int, log_bytes: int) -> None:
    """Killed after the append was durable and before it answered, and started anew: the client asks again, and gets the commit that was made."""
    with Service(tmp_path / "wh", crash_at=f"{point}:{arrival}", stream_log_bytes=log_bytes) as service, service.connect() as wh:
        reviver = threading.Thread(target=service.revive, daemon=True)
        reviver.start()
        events = wh.create_stream("event", "id INT")
        for number in range(6):
            done = events.insert([{"id": number}], transaction=f"T{number}")
            assert (dict(done.numbers), done.rows) == ({"event": number + 1}, 1)
        reviver.join(timeout=60)
        assert not reviver.is_alive(), f"{point} was reached fewer than {arrival} times"
        assert ids(events) == list(range(6)) and events.last is not None and events.last.transaction == "T5"


def test_an_append_that_nobody_answered_is_in_doubt_until_it_is_made_again(tmp_path: Path) -> None:
    """The client gave up, the service was killed and is back: made again, it is answered with the commit that was made; another is another."""
    with Service(tmp_path / "wh") as service, Proxy(service.port) as proxy, open_remote(proxy.address, reconnect_s=1, call_timeout_s=1) as wh:
        events = wh.create_stream("event", "id INT")
        events.insert([{"id": 1}])
        proxy.swallow_answers()
        with pytest.raises(AppendUnknown, match="event"):
            events.insert([{"id": 2}], transaction="lost")
        service.kill()
        service.start()
        proxy.heal()
        assert events.insert([{"id": 3}]).numbers == {"event": 3}
        assert events.insert([{"id": 2}], transaction="lost").numbers == {"event": 2}
        assert ids(events) == [1, 2, 3]


def test_a_flow_of_the_service_takes_what_a_client_appends(tmp_path: Path, spark_owner: SparkOwner) -> None:
    """The answer has the row, and its receipt the transaction of the source that brought it."""
    spark_owner.session()
    flow = rt.Flow("copy")
    flow.stream("order", "id INT, qty INT", keys="id").where("qty > 0").into("orders", keys="id")
    with rt.open(tmp_path / "wh") as here, here.run(flow):
        server = FlightService(here, engine_of(here))
        try:
            with open_remote(server.address) as wh:
                done = wh.stream("order").insert([{"id": 1, "qty": 5}, {"id": 2, "qty": 0}], transaction="till-77")
                answer = wh.read("orders", freshness="0s", wait="120s")
                assert answer.rows() == [(1, 5)]
                (cut,) = answer.receipt.streams
                assert (cut.stream, cut.flow) == ("order", "copy") and cut.last_inside is not None
                assert (cut.last_inside.time_us, cut.last_inside.transaction) == (done.time_us, "till-77")
                with pytest.raises(ImageDiffers):
                    wh.stream("order").delete([{"id": 1, "qty": 6}])
        finally:
            server.stop()


def test_a_stream_of_a_service_is_no_table_of_it(wh: RemoteWarehouse, line: Stream) -> None:
    """A client tells them apart as the service does."""
    with wh.producer() as load:
        for use in (
            lambda: wh.sql(f"SELECT * FROM {line.name}"),
            lambda: wh.read(line.name),
            lambda: wh.schema(line.name),
            lambda: load.insert(line.name, {"id": 1, "qty": 1}),
        ):
            with pytest.raises(NotATable, match="is a stream, not a table"):
                use()
