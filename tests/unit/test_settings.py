"""Settings: how large they may be."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

import righttime as rt
from righttime.errors import BadSetting, ServiceUnreachable
from righttime.flight.warehouse import CLIENT_SETTINGS
from righttime.settings import COUNT_MAX, MIB, SECONDS_MAX, Settings, load_settings

SECONDS = [name for name, field in Settings.model_fields.items() if field.annotation is float]
COUNTS = [name for name, field in Settings.model_fields.items() if field.annotation is int]


def test_times_that_no_clock_can_reach_are_refused() -> None:
    """They would be found first by the clock, the lock or the database that has to wait so long, in the middle of a query."""
    assert {name for name in Settings.model_fields if name.endswith("_s")} == set(SECONDS)
    for name in SECONDS:
        for value in (math.inf, math.nan, 1e300, "inf", SECONDS_MAX * 2):
            with pytest.raises(BadSetting) as caught:
                load_settings(**{name: value})
            assert caught.value.context["name"] == name


def test_numbers_that_no_counter_can_reach_are_refused() -> None:
    """Counts of rows, bytes and entries are those of 64 bits in Arrow, SQLite and PostgreSQL."""
    for name in COUNTS:
        with pytest.raises(BadSetting) as caught:
            load_settings(**{name: COUNT_MAX + 1})
        assert caught.value.context["name"] == name


def test_the_greatest_values_are_accepted() -> None:
    """For ever is a hundred years; PostgreSQL counts milliseconds in 32 bits."""
    found = load_settings(lease_ttl_s=SECONDS_MAX, wait_s=SECONDS_MAX, receipts_max=COUNT_MAX, lock_wait_s=2_147_483)
    assert (found.lease_ttl_s, found.receipts_max, found.lock_wait_s) == (SECONDS_MAX, COUNT_MAX, 2_147_483)
    for name, value in (("lock_wait_s", 2_147_484), ("sources_max", 4097), ("message_bytes_max", 2001 * MIB)):
        with pytest.raises(BadSetting):
            load_settings(**{name: value})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory_byte_max = 3", "'memory_byte_max': righttime.toml has a setting of this name, and there is none; did you mean memory_bytes_max"),
        ("qqq = 3", "'qqq': righttime.toml has a setting of this name, and there is none."),
        ("[settings]\nwait_s = 3", r"righttime.toml has a table of this name, which is none: settings stand above all tables, and those are [project]"),
        ('memory_bytes_max = "x"', "'memory_bytes_max': 'x' in righttime.toml: it must be a whole number."),
        ('wait_s = "soon"', "'wait_s': 'soon' in righttime.toml: it must be a number, and finite."),
        ("wait_s = -1", "'wait_s': -1 in righttime.toml: it must be at least 0."),
        ("sources_max = 5000", "5000 in righttime.toml: it must be at most 4096."),
        ("spark_conf = 3", "3 in righttime.toml: it must be a table of texts."),
        ('table_schema = ""', "'' in righttime.toml: it must have a character."),
        ("spark_master = 1", "1 in righttime.toml: it must be a text."),
    ],
)
def test_a_wrong_setting_is_said_with_its_place_and_in_words(line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there, where, and what would do; not what a library of ours calls it."""
    monkeypatch.chdir(tmp_path)
    Path("righttime.toml").write_text(line)
    with pytest.raises(BadSetting) as caught:
        load_settings()
    assert words in str(caught.value)


def test_the_place_of_a_wrong_setting_is_the_one_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call before the environment before the file."""
    monkeypatch.chdir(tmp_path)
    Path("righttime.toml").write_text("wait_s = -1")
    monkeypatch.setenv("RIGHTTIME_WAIT_S", "-2")
    with pytest.raises(BadSetting, match="'-2' in RIGHTTIME_WAIT_S: it must be at least 0"):
        load_settings()
    with pytest.raises(BadSetting, match="-3 in the call: it must be at least 0"):
        load_settings(wait_s=-3)


@pytest.mark.parametrize("address", ["righttime://127.0.0.1:1", "righttime://127.0.0.1:1,127.0.0.1:2"])
def test_a_client_refuses_what_only_the_service_can_honour(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it connects, if it is given in the call; the environment may be that of a service, too. What is the client's own is taken."""
    for name in sorted(Settings.model_fields.keys() - CLIENT_SETTINGS):
        given: dict[str, Any] = {name: 1}
        with pytest.raises(BadSetting, match=f"{name}.*for the service: RIGHTTIME_{name.upper()}"):
            rt.open(address, **given)
    monkeypatch.setenv("RIGHTTIME_MEMORY_BYTES_MAX", "1000")
    own: dict[str, Any] = {name: getattr(Settings(), name) for name in CLIENT_SETTINGS} | {"reconnect_s": 0}
    with pytest.raises(ServiceUnreachable):
        rt.open(address, **own)


def test_the_page_says_which_settings_are_the_clients() -> None:
    """One sentence names them all."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    (sentence,) = re.findall(r"A client of a service has its own for (.*?);", page.read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == CLIENT_SETTINGS
