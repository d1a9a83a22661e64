"""The benchmark beside peers gives all the same work, counts it right, and hides nobody's failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from bench.peers import report, workload
from bench.peers.bench import Bench, Plan, turns
from bench.peers.contenders import Contender, contenders
from bench.peers.drivers.llama_server import Stream, _new_ids
from bench.peers.install import RECIPES, Installer, install
from bench.peers.machine import Usage, build_read_floor, foreign_share
from bench.peers.metrics import MEASURES, figures, percentile
from bench.peers.place import Installed, Place
from bench.peers.player import Heard, play
from bench.peers.process import ContenderError, Process
from bench.peers.record import Log, Record, load
from bench.peers.results import Results
from bench.peers.workload import Play, Request, Sizes
from hypothesis import given
from hypothesis import strategies as st

from fakes.peer import FakePeer

TEXT = list(range(1000, 2044))
SMALL = Sizes(new_tokens=6, repeats=2, few=3, many=5, prefix=64)


def contender(label: str, engine: str = "other", bits: int = 16, **options: object) -> Contender:
    return Contender(label, engine, bits, Path(sys.executable), "fakes.peer", options, weights=1_000_000)  # type: ignore[arg-type]


def all_requests(sizes: Sizes) -> list[Request]:
    made = workload.scenarios(TEXT, sizes).values()
    return [one for scenario in made for play in scenario.plays for one in (*play.before, *play.requests)]


def test_the_work_is_the_same_every_time_and_of_the_promised_lengths() -> None:
    made = workload.scenarios(TEXT, Sizes())
    assert made == workload.scenarios(TEXT, Sizes())
    assert tuple(made) == workload.NAMES
    assert [len(made[name].plays[0].requests) for name in workload.NAMES] == [1, 1, 16, 64, 64, 20]
    assert all(50 <= len(one.prompt) <= 350 for one in made["many"].plays[0].requests)
    assert [len(one.plays[0].requests[0].prompt) for one in (made["one"], made["ttft"])] == [128, 1024]


def test_no_two_prompts_begin_alike_but_those_with_the_shared_prefix() -> None:
    requests = [one for one in all_requests(Sizes()) if one.prompt[:512] != shared_prefix()]
    starts = [tuple(one.prompt[:16]) for one in (*requests, *workload.warm_up(TEXT).requests)]
    assert len(set(starts)) == len(starts)


def test_the_shared_prefix_was_seen_before_and_is_followed_by_different_ends() -> None:
    (one,) = workload.scenarios(TEXT, Sizes())["prefix"].plays
    assert [before.prompt[:512] for before in one.before] == [shared_prefix()]
    ends = [tuple(request.prompt[512:528]) for request in (*one.before, *one.requests)]
    assert len(set(ends)) == len(ends)


def shared_prefix() -> list[int]:
    return workload.scenarios(TEXT, Sizes())["prefix"].plays[0].requests[0].prompt[:512]


def test_held_requests_are_sent_when_the_one_they_wait_for_is_that_far() -> None:
    sent: list[tuple[int, int]] = []

    class Watching(FakePeer):
        def add(self, key: int, prompt: list[int], new_tokens: int) -> None:
            sent.append((key, self.open[0][0] if 0 in self.open else 0))
            super().add(key, prompt, new_tokens)

    requests = [Request(0, [1], 9), Request(1, [1], 2, after=(0, 4)), Request(2, [1], 2, after=(0, 6))]
    heard = play(Watching(), requests)
    assert sent == [(0, 0), (1, 5), (2, 7)]
    assert {key: len(one.ids) for key, one in heard.items()} == {0: 9, 1: 2, 2: 2}


def test_too_many_tokens_are_no_measurement() -> None:
    class Eager(FakePeer):
        def step(self) -> list:  # type: ignore[type-arg]
            return [*super().step()] * 2

    with pytest.raises(RuntimeError, match="more than 3"):
        play(Eager(), [Request(0, [1], 3)])


def test_silence_is_no_measurement() -> None:
    class Silent(FakePeer):
        def step(self) -> list:  # type: ignore[type-arg]
            return []

    ticks = iter(range(1000))
    with pytest.raises(TimeoutError, match="1 requests open"):
        play(Silent(), [Request(0, [1], 3)], patience=5, clock=lambda: next(ticks))


def test_figures_of_a_play() -> None:
    requests = [Request(0, [1], 4), Request(1, [1], 2, after=(0, 1), background=True)]
    heard = {0: Heard(0.0, [7] * 4, [0.5, 0.6, 0.6, 0.9]), 1: Heard(0.5, [7] * 2, [0.8, 1.0])}
    found = figures(requests, heard)
    assert found == pytest.approx(
        {"tok_s": 6.0, "ttft_ms": 500, "itl_p50_ms": 100, "itl_p99_ms": 300, "late_ttft_ms": 300, "decode_tok_s": 7.5}
    )


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_with_that_many_at_or_below(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(one <= found for one in values) >= percent * len(values)
    assert 100 * sum(one < found for one in values) < percent * len(values)


def test_what_others_took_is_neither_idle_nor_ours() -> None:
    before, after = Usage(10, 100, 1, 50), Usage(20, 115, 2, 62)
    assert foreign_share(before, after, cores=2) == pytest.approx((15 - 12 + 1) / 20)
    assert foreign_share(before, before, cores=2) == 0


def test_llama_cpps_events_are_read_wherever_they_are_cut() -> None:
    event = b'1a\r\ndata: {"content":"a","tokens":[5,6],"stop":false}\n\n\r\n'
    last = b'1a\r\ndata: {"content":"","tokens":[],"stop":true}\n\n\r\n0\r\n\r\n'
    data = b"HTTP/1.1 200 OK\r\n\r\n" + event + event + last
    for size in (1, 7, len(data)):
        stream = Stream(key=0)
        ids = [one for n in range(0, len(data), size) for one in _new_ids(stream, data[n : n + size])]
        assert ids == [5, 6, 5, 6]
    with pytest.raises(RuntimeError, match="too large"):
        _new_ids(Stream(key=0), b'{"error":{"message":"too large"}}\n')


def test_a_process_plays_and_says_what_went_wrong(tmp_path: Path) -> None:
    long = Play((Request(0, [1] * 1024, 1),))
    short = Play((Request(0, [1, 2], 3), Request(1, [1], 3)))
    first = workload.first_word(TEXT)
    for fault, message in (
        ("raise", "too long for me"),
        ("die", "died with status 3"),
        ("hang", "within 1 s"),
    ):
        process = Process(contender("peer", fault=fault), first, [0], tmp_path / "log", limit=30)
        try:
            assert process.cold_s > 0
            assert [one.ids for one in process.play(short, 30).values()] == [[2, 3, 4], [1, 2, 3]]
            with pytest.raises(ContenderError, match=message):
                process.play(long, 1)
        finally:
            process.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match=r"TypeError.*unknown_option"):
        Process(contender("peer", unknown_option=1), workload.first_word(TEXT), [0], tmp_path / "log", limit=30)


def test_a_run_interleaves_goes_on_after_failures_and_can_be_resumed(tmp_path: Path) -> None:
    taking_part = [contender("tiergate x", "tiergate"), contender("frail", fault="die"), contender("unable", bad=1)]
    made = workload.scenarios(TEXT, SMALL)
    plan = Plan(taking_part, [made[name] for name in ("one", "ttft", "few")], TEXT, [0], rounds=2, limit=30)
    said: list[str] = []
    path = tmp_path / "records.jsonl"
    Bench(plan, Log(path), tmp_path, None, said.append).run()
    records = load(path)
    measured = [(one.round, one.contender, one.scenario) for one in records if not one.error]
    assert measured == [
        (number, name, scenario)
        for number, names in ((0, ["tiergate x", "frail"]), (1, ["tiergate x", "frail"]))
        for name in names
        for scenario in ("one", "ttft", "few", "process")
        if (name, scenario) != ("frail", "ttft")
    ]
    assert {(one.contender, one.scenario) for one in records if one.error} == {
        ("frail", "ttft"), ("unable", "one"), ("unable", "ttft"), ("unable", "few")
    }  # fmt: skip
    results = Results(taking_part, records)
    assert any(line.startswith("frail (ttft): died with status 3") for line in results.errors())
    assert any(line.startswith("unable (one, ttft, few): did not start") for line in results.errors())

    kept = [one for one in records if not one.error and one.scenario != "few"]
    again = Log(path, kept)
    Bench(plan, again, tmp_path, None, said.append).run()
    repeated = [(one.round, one.contender, one.scenario) for one in load(path)[len(kept) :] if not one.error]
    assert ("tiergate x", "one") not in {(name, scenario) for _, name, scenario in repeated}
    assert {(n, "tiergate x", "few") for n in (0, 1)} <= set(repeated)


def test_rounds_that_time_does_not_allow_are_left_out_and_said(tmp_path: Path) -> None:
    now = iter(range(0, 100_000, 100))
    said: list[str] = []
    plan = Plan([contender("slow")], [workload.scenarios(TEXT, SMALL)["one"]], TEXT, [0], rounds=3, minutes=1)
    log = Log(tmp_path / "records.jsonl")
    Bench(plan, log, tmp_path, None, said.append, clock=lambda: next(now)).run()
    assert {one.round for one in log.records} == {0}
    assert said[1:] == [f"round {n}, slow: left out for want of time" for n in (2, 3)]


def test_what_took_long_is_not_repeated(tmp_path: Path) -> None:
    made = workload.scenarios(TEXT, SMALL)
    plan = Plan([contender("peer")], [made["one"], made["few"]], TEXT, [0], rounds=2, long=5)
    log = Log(tmp_path / "records.jsonl", [Record(0, "peer", "one", {"tok_s": 1}, seconds=6)])
    Bench(plan, log, tmp_path, None, lambda _: None).run()
    assert [(one.round, one.scenario) for one in log.records if one.scenario != "process"] == [
        (0, "one"), (0, "few"), (1, "few")
    ]  # fmt: skip


def test_everyone_begins_a_round_some_time() -> None:
    everyone = [contender(str(n)) for n in range(6)]
    orders = [turns(everyone, number) for number in range(6)]
    assert all(sorted(one.label for one in order) == list("012345") for order in orders)
    assert len({order[0].label for order in orders}) == 6


def record(number: int, label: str, scenario: str, **found: float) -> Record:
    return Record(number, label, scenario, found, read_s=0.01, ids=[1, 2, 3])


def test_ratios_above_one_mean_that_ours_is_better_and_are_of_the_same_round() -> None:
    ours, fast, slow = contender("ours", "tiergate"), contender("fast", "peer"), contender("slow", "peer", 8)
    rates = {"ours": (100, 10, 50), "fast": (50, 1, 50), "slow": (10, 1, 10)}
    records = [record(n, label, "few", tok_s=rate) for label, three in rates.items() for n, rate in enumerate(three)]
    waits = {"ours": 20.0, "fast": 60.0}
    records += [record(0, label, "ttft", ttft_ms=wait) for label, wait in waits.items()]
    results = Results([ours, fast, slow], records)
    more = next(one for one in MEASURES if (one.scenario, one.name) == ("few", "tok_s"))
    less = next(one for one in MEASURES if (one.scenario, one.name) == ("ttft", "ttft_ms"))
    assert results.ratio(ours, fast, more) == 2.0
    assert results.ratio(ours, fast, less) == 3.0
    assert results.ratio(ours, slow, less) is None
    assert results.best([fast, slow], more) == fast
    _, best, equal = report.grids(results)
    assert best.rows[1] == ["16 at once, tok/s", "50.0 (ours)", "2.00 (fast 50.0)", "2.00"]
    assert equal.rows[1] == ["16 at once, tok/s", "2.00 (fast 50.0)", "-", "-"]


def test_a_report_names_who_is_missing_and_how_close_to_the_floor_the_rest_are() -> None:
    ours, peer = contender("ours", "tiergate"), contender("peer", "transformers")
    records = [
        record(0, "ours", "one", decode_tok_s=80.0),
        Record(0, "peer", "one", {"decode_tok_s": 20.0}, read_s=0.01, ids=[1, 2, 4]),
        Record(0, "peer", "mixed", error="takes nothing up while it answers"),
    ]
    results = Results([ours, peer], records)
    text = report.markdown(results, {"gone": Installed(reason="needs cmake")}, "A machine.", {"peer": "1.0"})
    assert "| decode of its floor | 80% | 20% |" in text
    assert "| same ids | 2/3 | 3/3 |" in text
    assert "- gone: needs cmake" in text
    assert "- peer (mixed): takes nothing up while it answers" in text


def test_a_peer_that_cannot_be_installed_is_remembered_with_its_reason(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "make bench-peers" in place.installed("vllm").reason
    installer = Installer(place, tmp_path, torch_index="")
    with pytest.raises(Exception, match="no such thing") as caught:
        installer.run(sys.executable, "-c", "import sys; print('no such thing'); sys.exit(1)")
    broken = {"vllm": lambda _: (_ for _ in ()).throw(caught.value), "openvino": lambda _: "2026"}
    outcomes = install(installer, ["vllm", "openvino"], broken)
    assert "no such thing" in outcomes["vllm"].reason
    assert place.installed("openvino") == outcomes["openvino"] == Installed(version="2026")
    assert install(installer, ["openvino"], {"openvino": lambda _: "newer"})["openvino"].version == "2026"


def test_every_contender_belongs_to_a_recipe_and_has_a_driver(tmp_path: Path) -> None:
    everyone = list(contenders(Place(tmp_path), tmp_path, threads=2))
    assert {one.engine for one in everyone} == set(RECIPES)
    drivers = Path(workload.__file__).parent / "drivers"
    assert {one.driver.rsplit(".", 1)[1] for one in everyone} == {path.stem for path in drivers.glob("*.py")}


def test_the_floor_is_read_at_the_speed_of_some_memory(tmp_path: Path) -> None:
    floor = build_read_floor(tmp_path, threads=2)
    if floor is None:
        pytest.skip("no C++ compiler here")
    for size in (4096, 1_000_003, 8 << 20):
        assert 0 < floor.seconds(size) < 10
