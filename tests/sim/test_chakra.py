"""Chakra execution traces: read as they are written, refused in a sentence, and run."""

from __future__ import annotations

import json
import random
import runpy
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from softmrc import sim
from softmrc.errors import ConfigError, UsageError
from softmrc.sim.chakra import in_order
from softmrc.sim.chakra_format import COLLECTIVE, COMPUTE, RECEIVE, SEND, ChakraNode, read_nodes, schema, write_nodes
from softmrc.sim.steps import steps_of

ROOT = Path(__file__).resolve().parents[2]
FABRIC = {"planes": 2, "hosts": 8, "hosts_per_leaf": 4, "spines": 4}


def compute(number: int, us: int, *after: int) -> ChakraNode:
    return ChakraNode(number, COMPUTE, "gemm", after, us)


def reduce(number: int, size: int, *after: int, group: str = "", kind: int = 0) -> ChakraNode:
    attributes: dict[str, Any] = {"comm_type": kind, "comm_size": size}
    return ChakraNode(number, COLLECTIVE, "reduce", after, 0, attributes | ({"pg_name": group} if group else {}))


def scenario(folder: Path, traces: list[list[ChakraNode]], **workload: Any) -> sim.Scenario:
    for rank, nodes in enumerate(traces):
        write_nodes(folder / f"trace.{rank}.et", nodes)
    table = {"kind": "chakra", "path": "trace"} | workload
    return sim.parse({"question": "?", "fabric": FABRIC, "workload": table}, str(folder / "job.toml"))


def run(folder: Path, traces: list[list[ChakraNode]], **workload: Any) -> sim.Result:
    result = sim.run(scenario(folder, traces, **workload))
    assert result.verdict, result.verdict.text
    return result


NODES = [
    compute(3, 250),
    ChakraNode(
        7, SEND, "to the next", (3,), 0, {"comm_size": 1 << 20, "comm_dst": 1, "comm_tag": 5, "is_cpu_op": False}
    ),
    reduce(9, 4096, 3, 7, group="17"),
    ChakraNode(12, "MEM_LOAD_NODE", "ü", (), 3, {"num_ops": -4, "share": 0.5}),
]


def plain(node: ChakraNode) -> dict[str, Any]:
    return {key: value for key, value in vars(node).items() if key != "where"}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_nodes(tmp_path / "a.et", NODES)
    assert [plain(one) for one in read_nodes(tmp_path / "a.et")] == [plain(one) for one in NODES]


def test_a_trace_byte_by_byte(tmp_path: Path) -> None:
    """As another writer would lay it out: unpacked dependencies, other types of numbers, fields that are not ours."""
    attribute = b"\x0a\x09comm_size" + b"\x68\x80\x80\x40"  # uint64_val = 1 MiB
    signed = b"\x0a\x02kk" + b"\x88\x01\x03"  # sint64_val = -2
    double = b"\x0a\x02dd" + b"\x19" + struct.pack("<d", 1.5)
    node = b"\x08\x05\x12\x01n\x18\x07\x20\x01\x20\x02\x2a\x02\x03\x04\x30\x63\x38\x07"
    for one in (attribute, signed, double):
        node += b"\x52" + bytes([len(one)]) + one
    node += b"\x42\x03\x0a\x01x" + b"\x9d\x06\x01\x02\x03\x04"  # inputs; an unknown field of four bytes
    (tmp_path / "a.et").write_bytes(b"\x07\x0a\x050.0.4" + bytes([len(node)]) + node)
    (found,) = read_nodes(tmp_path / "a.et")
    assert plain(found) == plain(
        ChakraNode(5, COLLECTIVE, "n", (1, 2, 3, 4), 7, {"comm_size": 1 << 20, "kk": -2, "dd": 1.5})
    )


def as_json(node: ChakraNode, snake: bool) -> dict[str, Any]:
    def key(name: str) -> str:
        first, *rest = name.split("_")
        return name if snake else first + "".join(one.title() for one in rest)

    kinds = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
    return {
        "id": str(node.id), "name": node.name, "type": node.type, key("data_deps"): [str(one) for one in node.after],
        key("duration_micros"): str(node.duration_us),
        "attr": [
            {"name": name, key(kinds[type(value)]): str(value) if type(value) is int else value}
            for name, value in node.attributes.items()
        ],
    }  # fmt: skip


@pytest.mark.parametrize("form", ["one after the other", "a list", "snake"])
def test_the_json_form(tmp_path: Path, form: str) -> None:
    tables = [{"version": "0.0.4"}, *(as_json(one, form == "snake") for one in NODES)]
    text = json.dumps(tables) if form == "a list" else "\n".join(json.dumps(one, indent=2) for one in tables)
    (tmp_path / "a.json").write_text(text)
    assert [plain(one) for one in read_nodes(tmp_path / "a.json")] == [plain(one) for one in NODES]


def test_a_trace_takes_the_time_that_can_be_told_by_hand(tmp_path: Path) -> None:
    alone = run(tmp_path, [[compute(1, 40), compute(2, 60), compute(3, 5, 1)]])
    assert alone.makespan_us == 105, "one thing at a time"
    both = run(tmp_path, [[compute(1, 40), reduce(2, 400_000, 1), compute(3, 30, 2)]] * 8)
    (step,) = steps_of(both)
    assert step.computing_us == 70 and step.exposed_us == pytest.approx(both.call_us[0], rel=1e-6)
    assert step.step_us == pytest.approx(70 + both.call_us[0])
    hidden = run(tmp_path, [[compute(1, 40), reduce(2, 400_000, 1), compute(3, 3000, 1)]] * 8)
    assert steps_of(hidden)[0].exposed_us == 0 and hidden.makespan_us == 3040


def test_operations_take_time_at_a_rate(tmp_path: Path) -> None:
    node = ChakraNode(1, COMPUTE, "gemm", (), 0, {"num_ops": 5_000_000})
    assert run(tmp_path, [[node]], gpu_flops=1e12).makespan_us == 5
    with pytest.raises(ConfigError, match=r"trace\.0\.et.*node 1: num_ops.*gpu_flops"):
        run(tmp_path, [[node]])


def test_messages_groups_and_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"a": [0, 1], "b": [2, 3]}')
    send = ChakraNode(5, SEND, "s", (1,), 0, {"comm_size": 50_000, "comm_dst": 2, "comm_tag": 1})
    receive = ChakraNode(6, RECEIVE, "r", (), 0, {"comm_src": 0, "comm_tag": 1})
    traces = [
        [reduce(1, 1001, group="a"), send],
        [reduce(1, 1001, group="a"), reduce(2, 4096, 1, group="a", kind=2)],
        [reduce(1, 4096, 6, group="b", kind=6), receive],
        [reduce(1, 4096, group="b", kind=6)],
    ]
    traces[0].append(reduce(2, 4096, 1, group="a", kind=2))
    result = run(tmp_path, traces, groups="groups.json")
    calls = {(one.kind.name, one.bytes, len(result.plan.ranks[one.ranks])) for one in result.plan.calls}
    assert calls == {("ALL_REDUCE", 1004, 2), ("ALL_GATHER", 8192, 2), ("ALL_TO_ALL", 2048, 2)}
    sent = result.flows[result.group("send")]
    call = result.flows[np_mask(result, 2)]
    assert sent["bytes"].tolist() == [50_000] and call["start_ps"].max() >= sent["delivered_ps"][0]


def np_mask(result: sim.Result, host: int) -> Any:
    return (result.flows["source"] == host) & result.group("all-to-all")


REFUSED: dict[str, tuple[list[list[ChakraNode]], str]] = {
    "broadcast": ([[reduce(1, 8, kind=5)]] * 2, "comm_type`: .*one of ALL_REDUCE.*BROADCAST"),
    "kind": ([[reduce(1, 8, kind=77)]] * 2, "comm_type.*77"),
    "no size": ([[ChakraNode(1, COLLECTIVE, "x", (), 0, {"comm_type": 0})]] * 2, "comm_size"),
    "negative": ([[reduce(1, -8)]] * 2, "comm_size.*-8"),
    "alone": ([[reduce(1, 8)], [compute(1, 1)]], "a call of rank 1, too"),
    "other size": ([[reduce(1, 8)], [reduce(1, 16)]], "as rank 0 calls it"),
    "dependency": ([[compute(1, 1, 9)]], "node 1.*depend on a node of the trace .got 9"),
    "circle": ([[compute(1, 1, 2), compute(2, 1, 1)]], "node 1.*not depend on itself"),
    "twice": ([[compute(1, 1), compute(1, 1)]], "id.*no other node"),
    "to itself": ([[ChakraNode(1, SEND, "s", (), 0, {"comm_size": 4, "comm_dst": 0})]], "another rank"),
    "nobody": ([[ChakraNode(1, SEND, "s", (), 0, {"comm_size": 4, "comm_dst": 3})]], "comm_dst.*3"),
    "unheard": (
        [[ChakraNode(1, SEND, "s", (), 0, {"comm_size": 4, "comm_dst": 1})], [compute(1, 1)]],
        "rank 1 does not receive",
    ),
    "too long": ([[compute(1, 1 << 60)]], "duration_micros"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_in_a_trace_is_named(tmp_path: Path, name: str) -> None:
    traces, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as refused:
        sim.run(scenario(tmp_path, traces))
    assert "trace." in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_wrong_with_the_files_is_named(tmp_path: Path) -> None:
    one = scenario(tmp_path, [[compute(1, 1)]] * 9)
    with pytest.raises(ConfigError, match=r"workload\.path.*1 to 8 files.*is of 9"):
        sim.run(one)
    with pytest.raises(ConfigError, match=r"is of 0"):
        sim.run(scenario(tmp_path, [], path="nothing"))
    (tmp_path / "groups.json").write_text('{"a": [0, 1, 99]}')
    for rank in range(2, 9):
        (tmp_path / f"trace.{rank}.et").unlink()
    with pytest.raises(ConfigError, match=r"groups\.json: `a`: .*ranks below 2"):
        sim.run(scenario(tmp_path, [[reduce(1, 8)]] * 2, groups="groups.json"))
    (tmp_path / "empty.0.et").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"empty\.0\.et: `nodes`: must be at least one"):
        sim.run(scenario(tmp_path, [], path="empty"))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["et", "json"])
def test_mutations_of_a_trace_are_read_or_refused_in_a_sentence(tmp_path: Path, ending: str) -> None:
    """Bits, cuts, copies and numbers at random: nothing but nodes or a ConfigError ever comes of it."""
    file = tmp_path / f"a.{ending}"
    if ending == "et":
        write_nodes(file, NODES)
    else:
        file.write_text("\n".join(json.dumps(as_json(one, False), indent=1) for one in NODES))
    whole = file.read_bytes()
    draw = random.Random(f"chakra {ending}")
    read = refused = 0
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data) + 1)
            how = draw.randrange(4)
            if how == 0 and at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            elif how == 1:
                data = data[:at] or bytearray(whole[:1])
            elif how == 2:
                data[at:at] = draw.choice(
                    [b"\xff" * 9 + b"\x01", b"\x80" * 12, b'"', b"[" * 3000, b"9" * 5000, b"{}", b"-"]
                )
            else:
                data[at : at + 8] = bytes(draw.randrange(256) for _ in range(8))
        file.write_bytes(data)
        try:
            nodes = in_order(read_nodes(file), file)
            read += 1
            assert len(nodes) <= len(data) and all(len(one.name) <= 4 * len(data) for one in nodes)
        except ConfigError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
    assert read > 100 and refused > 1000


def test_without_protobuf_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    schema.cache_clear()
    with pytest.raises(UsageError, match=r"protobuf.*pip install 'softmrc\[chakra\]'"):
        schema()


LIES = {
    "the length of a message": b"\x00" + b"\xff" * 9 + b"\x01" + b"x" * 100,
    "the length of a name": b"\x00\x0b\x12" + b"\xff" * 8 + b"\x7f" + b"x" * 100,
    "dependencies": b"\x00\x7e\x2a\xff\xff\xff\x7f" + b"\x01" * 121,
}


@pytest.mark.parametrize("what", LIES)
def test_a_length_that_lies_costs_nothing(tmp_path: Path, what: str) -> None:
    file = tmp_path / "a.et"
    file.write_bytes(LIES[what])
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"a\.et: byte \d+.*(inside|ends)"):
        read_nodes(file)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_memory_is_in_proportion_to_the_file(tmp_path: Path) -> None:
    write_nodes(tmp_path / "a.et", [ChakraNode(number) for number in range(20_000)])
    tracemalloc.start()
    assert len(read_nodes(tmp_path / "a.et")) == 20_000
    assert tracemalloc.get_traced_memory()[1] < 200 * (tmp_path / "a.et").stat().st_size
    tracemalloc.stop()


def test_the_shipped_traces_are_what_the_tool_writes(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools" / "chakra_example.py"))["write"](tmp_path)
    shipped = ROOT / "scenarios" / "jobs" / "traces"
    written = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert written == {one.name: one.read_bytes() for one in shipped.iterdir()}


# What ASTRA-sim's documentation prints, in ns, made of: chunks × (10 + steps × (wire + 510) + sums × 60).
# And what ours is made of: messages × (wire + 500 + a packet on the second link + acknowledgements for the other side).
RATE = 50 * 2**30 / 1e9  # bytes a nanosecond
PUBLISHED = {
    "astra-all-gather": (323_560, 4 * (10 + 15 * (4882 + 510)), 60, 1 << 18),
    "astra-all-reduce": (64_440, 4 * (10 + 14 * (610 + 510) + 7 * 60), 56, 1 << 15),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_is_reproduced_and_the_difference_is_known(name: str) -> None:
    published, made_of, messages, size = PUBLISHED[name]
    assert published == made_of
    shipped, chunks, alike = sim.run_all(ROOT / "scenarios" / "jobs" / f"{name}.toml")
    assert shipped.verdict and chunks.verdict and alike.verdict
    assert alike.makespan_us * 1000 == pytest.approx(published, rel=0.04)
    ours = messages * (size / RATE + 500 + 4096 / RATE + size / 16384 * 128 / RATE)
    assert alike.makespan_us * 1000 == pytest.approx(ours, rel=0.002)
    assert shipped.makespan_us < chunks.makespan_us < alike.makespan_us, "what need not wait is faster"
