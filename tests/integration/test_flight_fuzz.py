"""Messages from strangers: whatever arrives, the answer is a coded error and the service goes on."""

import random
import socket
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import righttime as rt
from righttime.errors import BadMessage, MessageTooLarge, ServiceBusy, TooManySnapshots
from righttime.flight.contents import ContentWriter, fingerprint
from righttime.flight.desk import Desk
from righttime.flight.failures import failure_from_text, failure_of
from righttime.flight.frames import read_frame, write_frame
from righttime.flight.warehouse import RemoteWarehouse
from righttime.query.contract import Contract
from tests.support.crash import engine_of
from tests.support.proxy import Proxy
from tests.support.services import Service
from tests.support.waits import until

NAMES = ["session", "sequence", "source", "policy", "table", "tables", "columns", "keys", "name", "query", "contract", "snapshot", "rows", "content"]
NAMES += ["flushes", "batch", "store", "bypass", "places", "uploads", "call", "own"]
NAMES += ["stream", "append", "mark", "changes", "numbers", "time", "after", "up_to"]
KNOWN = {
    "service",
    "message",
    "session",
    "table",
    "column",
    "value",
    "receipt",
    "snapshot",
    "lease",
    "source",
    "sql",
    "freshness",
    "setting",
    "operation",
    "as_of",
    "stream",
    "change",
    "append",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    bounds: dict[str, Any] = {"message_bytes_max": 1_000_000, "sessions_max": 6, "snapshots_max": 2, "calls_max": 8}
    with Service(tmp_path_factory.mktemp("fuzz") / "wh", "--metrics-port", "0", **bounds) as running:
        yield running


@pytest.fixture(scope="module")
def actions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every action that a desk has, those that a later version adds too; the one that is a stream, sent as a message; and one that it has not."""
    with rt.open(tmp_path_factory.mktemp("actions") / "wh") as warehouse:
        known = Desk(warehouse, engine_of(warehouse))._known_actions()
    assert {"explain", "session.commit", "snapshot.take", "group.claim"} <= known
    return sorted({*known, "session.upload", "unknown"})


@pytest.fixture
def wh(service: Service) -> Iterator[RemoteWarehouse]:
    with service.connect() as warehouse:
        warehouse.create_table("sale", "sku INT, words STRING", keys=["sku"], if_not_exists=True)
        yield warehouse


def ask(wh: RemoteWarehouse, action: str, body: bytes | pa.Buffer) -> str | None:
    """Send bytes as they are, and return the code of the error, None for an answer."""
    results = list(wh._transport._client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=20)))
    header = read_frame(results[0].body, bytes_max=10**9).header
    return failure_of(header["error"]).code if "error" in header else None


def healthy(wh: RemoteWarehouse) -> None:
    with wh.producer(name="after") as load:
        load.upsert("sale", {"sku": 1, "words": "still here"})
        load.commit()
    assert (1, "still here") in wh.read("sale").rows()


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_are_refused_by_every_action(service: Service, wh: RemoteWarehouse, actions: list[str], seed: int) -> None:
    """Noise, and headers that are valid JSON of random shape."""
    print(f"seed={seed}")  # noqa: T201 - the seed of a failure
    dice = random.Random(seed)
    for action in actions:
        for body in (dice.randbytes(dice.randint(0, 200)), write_frame(_header(dice), [dice.randbytes(dice.randint(0, 50))])):
            code = ask(wh, action, body)
            assert code is None or code.partition(".")[0] in KNOWN, code
            assert code != "service.failed", (action, service.logs()[-2000:])
    healthy(wh)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_messages_are_refused_or_carried_out_whole(service: Service, wh: RemoteWarehouse, seed: int) -> None:
    """Bits of a real commit are flipped, bytes are lost, values of the header are exchanged: no crash, and no row that the table would not take."""
    print(f"seed={seed}")  # noqa: T201 - the seed of a failure
    dice = random.Random(seed)
    load = wh.producer(name="fuzz")
    load.insert_many("sale", [(-number - 1, f"text {number}") for number in range(20)])
    load.delete("sale", "words LIKE 'text%' AND sku < 0")
    load.update("sale", {"words": "x"}, {"sku": -5})
    writer = ContentWriter(wh._schemas)
    content = writer.contents(load._transaction()[0])
    session = load._session
    for number in range(120):
        header = {
            "session": session.session_id,  # type: ignore[attr-defined]
            "sequence": 1000 + 2 * number,
            "flushes": [],
            "content": content,
            "tables": writer.tables,
            "room": {},
            "batch": f"fuzz-{seed}-{number}",
        }
        if number % 3 == 0:
            header[dice.choice([name for name in header if name != "sequence"])] = _value(dice)
        frame = bytearray(write_frame(header, writer.parts).to_pybytes())
        if number % 3 == 1:
            for _ in range(dice.randint(1, 8)):
                frame[dice.randrange(len(frame))] ^= 1 << dice.randrange(8)
        elif number % 3 == 2:
            del frame[dice.randrange(len(frame)) :]
        code = ask(wh, dice.choice(["session.commit", "session.stage", "session.flush"]), bytes(frame))
        assert code != "service.failed", service.logs()[-3000:]
        if code is None:
            ask(wh, "session.rollback", write_frame({"session": session.session_id, "sequence": 1001 + 2 * number}))  # type: ignore[attr-defined]
    assert ask(wh, "session.close", write_frame({"session": session.session_id, "sequence": 9999})) is None  # type: ignore[attr-defined]
    for row in wh.read("sale").rows():
        assert isinstance(row[0], int) and (row[1] is None or isinstance(row[1], str))
    healthy(wh)


def test_uploads_and_tickets_of_strangers_are_refused(service: Service, wh: RemoteWarehouse) -> None:
    """Streams without a command, for no session, of other columns; tickets that are noise; calls that the service does not have."""
    client = wh._transport._client
    batch = pa.record_batch({"other": [1]})
    commands = [b"noise", write_frame({}).to_pybytes(), write_frame({"session": "x", "table": "sale", "mark": "m", "upload": "u"}).to_pybytes()]
    for descriptor in (flight.FlightDescriptor.for_path("a"), *(flight.FlightDescriptor.for_command(command) for command in commands)):
        with pytest.raises(flight.FlightError):
            _put(client, descriptor, batch)
    load = wh.producer(name="uploader")
    with pytest.raises(flight.FlightError) as caught:
        _put(client, _upload_of(load), batch)
    refused = failure_from_text(caught.value.extra_info)
    assert refused is not None and refused.code == "column.unknown"
    for ticket in (b"", b"noise", write_frame({"snapshot": "x" * 40, "table": "sale", "places": [0]}).to_pybytes()):
        with pytest.raises(flight.FlightError):
            client.do_get(flight.Ticket(ticket)).read_all()
    for call in (
        lambda: list(client.list_flights()),
        lambda: client.get_flight_info(flight.FlightDescriptor.for_path("a")),
        lambda: client.get_schema(flight.FlightDescriptor.for_path("a")),
    ):
        with pytest.raises((flight.FlightError, pa.ArrowException), match=r"message\.bad"):
            call()
    load.close()
    healthy(wh)


WORDS = pa.schema({"sku": pa.int32(), "words": pa.string()})


def words(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(len(values)), pa.int32()), pa.array(values, pa.string())], schema=WORDS)


def malformed(offsets: list[int], content: bytes) -> pa.RecordBatch:
    """Texts as no program would write them."""
    texts = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(np.array(offsets, dtype=np.int32)), pa.py_buffer(content))
    return pa.record_batch([pa.array(range(len(texts)), pa.int32()), texts], schema=WORDS)


@pytest.mark.parametrize(("offsets", "content"), [([0, 5, 2], b"hello"), ([0, 900, 3], b"hello"), ([0, 2], b"\xff\xfe")])
def test_a_stream_with_a_malformed_batch_in_its_middle_is_refused_as_a_whole(service: Service, wh: RemoteWarehouse, offsets: list[int], content: bytes) -> None:
    """What came before it is dropped with it, from the disk too, and no commit can name it."""
    load = wh.producer(name="uploader")
    with pytest.raises(flight.FlightError) as caught:
        _put(wh._transport._client, _upload_of(load), words("before"), malformed(offsets, content), words("after"))
    refused = failure_from_text(caught.value.extra_info)
    assert refused is not None and refused.code == "message.bad"
    assert _kept_uploads(service) == []
    assert _commit_upload(wh, load) == "message.bad"
    healthy(wh)


def test_a_stream_that_broke_off_and_ends_after_it_was_sent_again_is_not_taken_for_the_whole_one(service: Service, wh: RemoteWarehouse) -> None:
    """A connection may die without a word, and the service notice it long after the client has sent everything once more."""
    load = wh.producer(name="uploader")
    with flight.FlightClient(wh._transport.target.location) as lost:
        writer, _ = lost.do_put(_upload_of(load), WORDS)
        writer.write_batch(words("half"))
        until(lambda: _kept_uploads(service))
        _put(wh._transport._client, _upload_of(load), words("half"), words("and", "whole"))
        assert len(_kept_uploads(service)) == 2
        Thread(target=writer.close, daemon=True).start()  # it waits for an answer
    until(lambda: len(_kept_uploads(service)) == 1)
    before = len(wh.read("sale"))
    assert _commit_upload(wh, load) is None
    assert len(wh.read("sale")) == before + 3


class Flipping(Proxy):
    """Flips one bit of what clients send, so many bytes after their beginning."""

    def __init__(self, port: int, *, place: int, bit: int) -> None:
        self._place, self._bit = place, bit
        super().__init__(port)

    def _pump(self, source: socket.socket, sink: socket.socket, budget: list[int | None], answers: bool) -> None:
        passed = 0
        try:
            while chunk := bytearray(source.recv(4096)):
                if not answers and passed <= self._place < passed + len(chunk):
                    chunk[self._place - passed] ^= 1 << self._bit
                passed += len(chunk)
                sink.sendall(chunk)
        except OSError:
            pass
        self._break(source, sink)


@pytest.mark.parametrize("seed", range(2))
def test_streams_with_flipped_bits_are_refused_or_taken_whole(service: Service, wh: RemoteWarehouse, seed: int) -> None:
    """A bit on its way, of a text, a length, an offset or a frame: no crash, and no error of the service without a code."""
    print(f"seed={seed}")  # noqa: T201 - the seed of a failure
    dice, load = random.Random(seed), wh.producer(name="uploader")
    outcomes: Counter[str] = Counter()
    for _ in range(40):
        place, bit = dice.randint(300, 4500), dice.randrange(8)
        with Flipping(service.port, place=place, bit=bit) as proxy, flight.FlightClient(f"grpc+tcp://127.0.0.1:{proxy.port}") as client:
            try:
                options = flight.FlightCallOptions(timeout=2)
                _put(client, _upload_of(load), *(words(*(f"text {number}" for number in range(30))) for _ in range(4)), options=options)
                outcomes["taken"] += 1
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                refused = failure_from_text(getattr(error, "extra_info", None) or b"")
                outcomes["refused" if refused else "cut"] += 1
                assert refused is None or refused.code != "service.failed", (place, bit, service.logs()[-2000:])
    print(dict(outcomes))  # noqa: T201
    assert min(outcomes[kind] for kind in ("taken", "refused")) > 0
    load.close()
    until(lambda: not _kept_uploads(service))
    healthy(wh)


def test_a_stream_that_breaks_off_leaves_nothing(service: Service, wh: RemoteWarehouse) -> None:
    """Cut after so many bytes, within a batch or between two: the service goes on, and what came is gone with the session."""
    load = wh.producer(name="uploader")
    for cut_bytes in (700, 1500, 3000, 60_000):
        with (
            Proxy(service.port, bytes_range=(cut_bytes, cut_bytes)) as proxy,
            flight.FlightClient(f"grpc+tcp://127.0.0.1:{proxy.port}") as client,
            pytest.raises((flight.FlightError, pa.ArrowException, OSError)),
        ):
            _put(client, _upload_of(load), *(words(*("x" * 100 for _ in range(50))) for _ in range(100)))
    load.close()
    until(lambda: not _kept_uploads(service))
    healthy(wh)


def _upload_of(load: Any) -> flight.FlightDescriptor:
    header = {"session": load._session.session_id, "table": "sale", "mark": fingerprint(load._session._schemas["sale"]), "upload": "u"}
    return flight.FlightDescriptor.for_command(write_frame(header).to_pybytes())


def _commit_upload(wh: RemoteWarehouse, load: Any) -> str | None:
    """Commit the upload, and end the session, with messages of our own; return the code of the error."""
    session = {"session": load._session.session_id}
    code = ask(wh, "session.durable", write_frame({**session, "sequence": 1000, "batch": uuid.uuid4().hex, "store": True, "bypass": {"sale": ["u"]}}))
    assert ask(wh, "session.close", write_frame({**session, "sequence": 1001})) is None
    return code


def _kept_uploads(service: Service) -> list[Path]:
    return list((service.folder / "spill").glob("upload-*"))


def test_messages_over_the_bound_are_refused_on_both_sides(wh: RemoteWarehouse) -> None:
    """The client does not send them, the service does not take them; what is larger goes up as a stream."""
    assert ask(wh, "hello", b"\0" * 1_100_000) == "message.too_large"
    with pytest.raises(MessageTooLarge):
        wh._transport.call("verify", {"receipt": "x" * 1_100_000})
    with wh.producer(name="large") as load:
        load.insert_many("sale", [(number, "x" * 1000) for number in range(10_000, 12_000)])
        with pytest.raises(MessageTooLarge):
            load.commit()
        load.rollback()
    healthy(wh)


def test_sessions_and_snapshots_are_bounded(wh: RemoteWarehouse) -> None:
    """Too many at once are refused with the name of the bound; when some end, others begin."""
    producers = [wh.producer() for _ in range(6 - len(wh.status().producers))]
    with pytest.raises(ServiceBusy, match="sessions_max"):
        wh.producer()
    for producer in producers:
        producer.close()
    wh.producer().close()
    snapshots, contract = wh._consumer._snapshots, Contract(0, 1.0, "error", None)
    with snapshots.take(["sale"], contract), snapshots.take(["sale"], contract), pytest.raises(TooManySnapshots):
        wh.read("sale")
    healthy(wh)


def test_a_message_that_comes_late_is_refused(wh: RemoteWarehouse) -> None:
    """A message that wandered about while later ones were answered changes nothing any more."""
    load = wh.producer(name="late")
    for number in range(3):
        load.insert("sale", (number + 100, "late"))
        load.commit()
    session = {"session": load._session.session_id}  # type: ignore[attr-defined]
    with pytest.raises(BadMessage, match="later message"):
        wh._transport.call("session.rollback", {**session, "sequence": 1})
    load.close()


def test_health_and_metrics(service: Service, wh: RemoteWarehouse) -> None:
    """Probes get what they need, Prometheus can read it, and other paths are not there."""
    base = f"http://127.0.0.1:{service.health_port}"
    assert urllib.request.urlopen(f"{base}/healthz").read() == b"ok\n"
    assert urllib.request.urlopen(f"{base}/readyz").read() == b"ready\n"
    healthy(wh)
    text = urllib.request.urlopen(f"{base}/metrics").read().decode()
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(series['righttime_table_rows_hot{table="sale"}']) > 0
    assert float(series['righttime_calls_total{action="session.commit"}']) > 0
    assert "# TYPE righttime_calls_total counter" in text.splitlines()
    assert float(series["righttime_unflushed_seconds"]) >= 0
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{base}/other")


def _put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, *batches: pa.RecordBatch, options: Any = None) -> None:
    writer, reader = client.do_put(descriptor, batches[0].schema, options)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        reader.read()


def _header(dice: random.Random) -> dict[str, object]:
    return {name: _value(dice) for name in dice.sample(NAMES, 8)}


def _value(dice: random.Random, depth: int = 0) -> object:
    plain = [None, True, 0, -1, 2**62, 2**70, 1.5, "", "sale", "x" * 40, "nope", "\0", dice.randint(-10, 10)]
    if depth < 3 and dice.random() < 0.5:
        return dice.choice([[_value(dice, depth + 1) for _ in range(2)], {"sale": _value(dice, depth + 1), "on_late": "error"}, [], {}])
    return dice.choice(plain)
