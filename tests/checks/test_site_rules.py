"""Rules of a site: what a file changes, and what is said of a wrong one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import registry
from ganger.check_api.rule import Repeat, RuleBook
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.site_rules import SiteRulesError, read_site_rules
from ganger.model.node_health.fault import Severity
from tests.checks.samples import codes, faults, sample

ROOT = Path(__file__).parents[2]
NOTE, JOB, RESET, REBOOT, REPLACE = Severity
FILE = """\
shadow_checks = ["nic"]

[[xid]]
code = 63
severity = "reboot"
shadow = true

[[xid]]
code = "149 fatal 4"
meaning = "link fault of the peer"
severity = "restart_job"
source = "site"
date = 2026-11-01

[[xid]]
code = 13
repeat = false

[[nic]]
code = "port_xmit_wait"
meaning = "congestion"
severity = "note"
limit = 1000
per_s = 1
source = "site"
date = "2026-11-01"

[[gpu]]
code = "nvlink_replay"
repeat = { times = 5, within_s = 3600, severity = "reboot", alone = true }
"""


def read(text: str) -> RuleBook:
    return read_site_rules("rules.toml", text, OWN_RULES, tuple(registry.checks()))


def test_rows_replace_columns_and_add_rows() -> None:
    book = read(FILE)
    own = OWN_RULES.table("xid")["63"]
    row = book.table("xid")["63"]
    assert (row.severity, row.is_shadow, row.meaning, row.source) == (REBOOT, True, own.meaning, own.source)
    assert book.table("xid")["149 fatal 4"].severity is JOB
    assert book.table("xid")["13"].repeat is None
    assert book.table("nic")["port_xmit_wait"].limit == 1000
    assert book.table("gpu")["nvlink_replay"].repeat == Repeat(5, 3600, REBOOT, is_alone=True)
    assert book.shadow_checks == ("nic",)
    assert OWN_RULES.table("xid")["63"].severity is NOTE
    assert read("") == OWN_RULES


def test_a_row_for_a_sub_code_goes_before_that_of_its_number() -> None:
    line = "NVRM: Xid (PCI:0000:03:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x{}505c6 0x00000000)"
    book = read(FILE)
    assert codes([sample(0, line.format("004"))], book) == [("xid_149_fatal_4", "GPU-2", JOB)]
    assert codes([sample(0, line.format("005"))], book) == [("xid_149_fatal", "GPU-2", RESET)]


def test_a_row_in_shadow_mode() -> None:
    (fault,) = faults([sample(0, "NVRM: Xid (PCI:0000:03:00): 63, Row Remapper")], read(FILE))
    assert (fault.severity, fault.is_shadow) == (REBOOT, True)


def test_the_example_of_the_page_is_valid() -> None:
    page = (ROOT / "docs" / "reference" / "node-checks.md").read_text(encoding="utf-8")
    book = read(page.partition("```toml\n")[2].partition("```")[0])
    assert book.table("xid")["149 fatal 4"].severity is NOTE


WRONG = {
    "[[xid]]\ncode = 63\nseverity = 'fatal'": (
        "rules.toml, line 1: table xid, row 1 (code 63), column severity: 'fatal' is not a severity; "
        "write one of note, restart_job, reset_device, reboot, replace"
    ),
    "[[xid]]\ncode = 63\nseverety = 'note'": (
        "rules.toml, line 1: table xid, row 1 (code 63), column 'severety': there is no such column; "
        "write one of code, meaning, severity, action, limit, per_s, hold_s, repeat, source, date, shadow"
    ),
    "[[xid]]\ncode = 63\n\n[[xid]]\ncode = 63": (
        "rules.toml, line 4: table xid, row 2 (code 63), column code: another row of the file has it; keep one of them"
    ),
    "[[xid]]\nseverity = 'note'": (
        "rules.toml, line 1: table xid, row 1 (code None), column code: None is not a number, as in code = 79, "
        'or "149 fatal 4"'
    ),
    "[[xid]]\ncode = 4711\nseverity = 'note'": (
        "rules.toml, line 1: table xid, row 1 (code 4711), column meaning: a new row needs it; "
        "add meaning, source, date"
    ),
    "[[xid]]\ncode = 63\nshadow = 'yes'": (
        "rules.toml, line 1: table xid, row 1 (code 63), column shadow: 'yes' is neither true nor false"
    ),
    "[[xid]]\ncode = 13\nrepeat = {times = 1, within_s = 60, severity = 'reboot'}": (
        "rules.toml, line 1: table xid, row 1 (code 13), column repeat: times is 1, not a whole number from 2 to 64; "
        'write { times = 2, within_s = 86400, severity = "reset_device" }, or false for none'
    ),
    "[[nic]]\ncode = 'symbol_error'\nlimit = nan": (
        "rules.toml, line 1: table nic, row 1 (code 'symbol_error'), column limit: nan is not a number of at least 0"
    ),
    "[[nic]]\ncode = 'symbol_error'\nper_s = -1": (
        "rules.toml, line 1: table nic, row 1 (code 'symbol_error'), column per_s: "
        "-1 is not a whole number of seconds from 0 to 31622400"
    ),
    "[[nic]]\ncode = 'symbol error'\nlimit = 1": (
        "rules.toml, line 1: table nic, row 1 (code 'symbol error'), column code: "
        "'symbol error' is not a counter in sysfs, as in code = \"symbol_error\""
    ),
    "[[host]]\ncode = 'read_only'\nlimit = 2": (
        "rules.toml, line 1: table host, row 1 (code 'read_only'), column limit: "
        "what this row is about has no number; leave the column out"
    ),
    "[[xids]]\ncode = 63": (
        "rules.toml: there is no table 'xids'; write [[condition]], [[gpu]], [[host]], [[nic]], [[sxid]], [[xid]]"
    ),
    "[xid]\ncode = 63": "rules.toml: xid is not a list of rows; write [[xid]] above each row",
    "[[xid]\ncode = 63": (
        "rules.toml is not valid TOML: Expected ']]' at the end of an array declaration (at line 1, column 6); "
        "correct that line"
    ),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items())
def test_a_wrong_file(text: str, sentence: str) -> None:
    with pytest.raises(SiteRulesError) as error:
        read(text)
    assert error.value.errors == (sentence,)


def test_a_code_that_nothing_would_ever_find() -> None:
    with pytest.raises(SiteRulesError, match=r"there is no such row; write one of aer_fatal,"):
        read("[[gpu]]\ncode = 'ecc'\nseverity = 'note'")


def test_unknown_checks_in_shadow_mode() -> None:
    with pytest.raises(SiteRulesError, match=r"shadow_checks is \['nics'\]: write a list of clock_skew, conditions"):
        read("shadow_checks = ['nics']")


def test_all_errors_are_in_one_answer_and_nothing_applies() -> None:
    with pytest.raises(SiteRulesError) as error:
        read("[[xid]]\ncode = 63\nseverity = 1\nper_s = 'x'\n[[nic]]\ncode = 'x y'\n[[none]]\n")
    assert len(error.value.errors) == 4


def errors_of(text: str) -> tuple[str, ...]:
    try:
        read(text)
    except SiteRulesError as error:
        return error.errors
    return ()


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["note", "63", "symbol_error"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def as_toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{as_toml(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    return str(value)


@given(
    st.sampled_from(["xid", "sxid", "nic", "gpu", "host", "condition", "other"]),
    st.dictionaries(
        st.sampled_from(["code", "severity", "limit", "per_s", "hold_s", "repeat", "shadow", "date", "x"]), VALUES
    ),
)
def test_any_row_is_read_or_refused(table: str, row: dict[str, object]) -> None:
    text = f"[[{table}]]\n" + "".join(f"{key} = {as_toml(value)}\n" for key, value in row.items())
    assert all("rules.toml" in sentence for sentence in errors_of(text))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all("rules.toml" in sentence for sentence in errors_of(text))
