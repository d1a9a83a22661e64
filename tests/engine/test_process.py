"""Engine processes: real ones, on fake models where the model does not matter."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket as socket_module
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from fakes.engine_process import FakeModel
from support.cores import naive_greedy, request
from support.engine_socket import EngineSocket
from tiergate.engine import EngineConfig, EngineProcess, LaneConfig, launch
from tiergate.engine.messages import Abort, Failed, Finished, Generate, Hello, Ready, Reply, Tokens
from tiergate.engine.process import find_address_fault

FAKE = (sys.executable, "-P", str(Path(__file__).parent.parent / "fakes" / "engine_process.py"))
PATIENCE = 60.0
PROMPT = [5, 6, 7, 8]
ROOMY = {"blocks": 4096, "context": 60_000}


def fake_lane(name: str = "a", **model: object) -> LaneConfig:
    return LaneConfig(name=name, model=msgspec.json.encode(FakeModel(**model)).decode())  # type: ignore[arg-type]


def start(*lanes: LaneConfig, client_timeout: float = 600.0) -> EngineProcess:
    return launch(EngineConfig(lanes=lanes or (fake_lane(),), threads=1, client_timeout=client_timeout), command=FAKE)


@contextlib.contextmanager
def connected(engine: EngineProcess) -> Iterator[EngineSocket]:
    socket = EngineSocket(engine.address, PATIENCE)
    try:
        socket.wait_ready()
        yield socket
    finally:
        socket.close()


@pytest.fixture(scope="module")
def quick() -> Iterator[EngineProcess]:
    """An engine that answers at once."""
    engine = start(fake_lane(**ROOMY))
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def slow() -> Iterator[EngineProcess]:
    """An engine whose steps take long enough to act between them."""
    engine = start(fake_lane(step_seconds=0.01, **ROOMY))
    yield engine
    engine.stop()


def endless(id: str) -> Generate:
    return request(id, PROMPT, max_tokens=50_000)


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that must come; the test's own timeout is the bound."""
    while not holds():
        select.select([], [], [], 0.02)


def until_idle(socket: EngineSocket) -> None:
    def idle() -> bool:
        stats = socket.stats().lanes["a"]
        return stats.running == stats.waiting == stats.active == 0

    until(idle)


def test_ready_says_what_is_served(quick: EngineProcess) -> None:
    socket = EngineSocket(quick.address, PATIENCE)
    ready = socket.wait_ready()
    socket.close()
    assert ready.pid == quick.pid
    assert (ready.lanes["a"].vocab, ready.lanes["a"].block_size, ready.lanes["a"].context) == (64, 16, 60_000)


def test_answers_a_request(quick: EngineProcess) -> None:
    with connected(quick) as socket:
        outcome = socket.run([request("x", PROMPT), request("y", PROMPT[:2])])
        assert outcome["x"].ids == naive_greedy(PROMPT, 12, eos=())
        assert outcome["y"].ids == naive_greedy(PROMPT[:2], 12, eos=())


def test_clients_do_not_see_each_other(quick: EngineProcess) -> None:
    with connected(quick) as one, connected(quick) as two:
        one.send(request("x", PROMPT))
        outcome = two.run([request("x", PROMPT[:3])])
        assert outcome["x"].ids == naive_greedy(PROMPT[:3], 12, eos=())
        ids: list[int] = []
        while len(ids) < 12:
            ids += [id for reply in one.receive() if isinstance(reply, Tokens) for id in reply.ids]
        assert ids == naive_greedy(PROMPT, 12, eos=())


def test_hello_is_answered_once(quick: EngineProcess) -> None:
    with connected(quick) as socket:
        socket.send(Hello())
        socket.send(Hello(), Hello())
        stats = socket.stats()  # what comes before it would have been read by now
        assert stats.lanes["a"].blocks == 4096
        assert not socket.socket.poll(0)


def test_abort_in_mid_stream(slow: EngineProcess) -> None:
    with connected(slow) as socket:

        def cut(id: str, tokens: int) -> None:
            if id == "x" and tokens == 3:
                socket.send(Abort(id))

        ended = socket.run([endless("x"), request("y", PROMPT, max_tokens=20)], cut)
        assert ended["x"].finished.reason == "abort"
        assert ended["x"].finished.completion_tokens == len(ended["x"].ids)
        assert ended["y"].finished.reason == "length"
        until_idle(socket)


BAD_FRAMES = [
    b"",
    b"\x00" * 10,
    b"\xff" * 1000,
    b"\xc1",
    b"\x91" * 100_000,
    msgspec.msgpack.encode(None),
    msgspec.msgpack.encode({"type": "hello"}),
    msgspec.msgpack.encode([1, None, "x", {}, []]),
    msgspec.msgpack.encode([{"type": "nothing"}, {"type": "abort"}, {"type": "abort", "id": 5}]),
    msgspec.msgpack.encode([{"type": "generate", "id": 7}]),
    b"\x91\x82\xa4type\xa8generate\xa2id\xa2\xff\xfe",
]


@pytest.mark.parametrize("frame", BAD_FRAMES, ids=lambda frame: repr(frame[:20]))
def test_bad_frames_are_passed_over(quick: EngineProcess, frame: bytes) -> None:
    with connected(quick) as socket:
        socket.socket.send(frame)
        socket.socket.send_multipart([frame, b"", frame])
        assert socket.run([request("x", PROMPT)])["x"].ids == naive_greedy(PROMPT, 12, eos=())


def test_a_malformed_request_is_answered_and_its_neighbours_served(quick: EngineProcess) -> None:
    good = msgspec.to_builtins(request("good", PROMPT))
    bad = {**good, "id": "bad", "token_ids": "five"}
    worse = {**good, "id": "worse", "sampling": {"max_tokens": "all", "temperature": None}}
    with connected(quick) as socket:
        socket.socket.send(msgspec.msgpack.encode([bad, good, worse]))
        ends: dict[str, Finished | Failed] = {}
        while len(ends) < 3:
            ends |= {reply.id: reply for reply in socket.receive() if isinstance(reply, Finished | Failed)}
    assert isinstance(ends["good"], Finished)
    for id in ("bad", "worse"):
        end = ends[id]
        assert isinstance(end, Failed)
        assert end.code == "invalid"


def test_a_silent_client_loses_its_sequences_and_learns_of_it() -> None:
    engine = start(fake_lane(step_seconds=0.01, **ROOMY), client_timeout=0.5)
    try:
        with connected(engine) as silent, connected(engine) as watcher:
            silent.send(endless("x"))
            until(lambda: watcher.stats().lanes["a"].running == 1)
            until_idle(watcher)
            silent.send(Hello())
            seen: list[Reply] = []
            while not any(isinstance(reply, Ready) for reply in seen):
                seen += silent.receive()
            assert not any(isinstance(reply, Finished | Failed) for reply in seen)
    finally:
        engine.stop()


def test_a_client_that_hangs_up_loses_its_sequences(slow: EngineProcess) -> None:
    with connected(slow) as watcher:
        with connected(slow) as leaver:
            leaver.send(endless("x"))
            until(lambda: watcher.stats().lanes["a"].running == 1)
        until_idle(watcher)


def test_a_client_that_does_not_read_is_cut_off_and_delays_nobody(quick: EngineProcess) -> None:
    with connected(quick) as reader:
        lazy = zmq.Context.instance().socket(zmq.DEALER)
        lazy.linger = 0
        lazy.rcvhwm = 1
        lazy.connect(quick.address)
        lazy.send(msgspec.msgpack.encode([Hello(), request("x", PROMPT, max_tokens=50_000, logprobs=20)]))
        until(lambda: reader.stats().lanes["a"].running == 1)
        assert reader.run([request("y", PROMPT)])["y"].ids == naive_greedy(PROMPT, 12, eos=())
        until_idle(reader)
        lazy.close()
    until(lambda: "cannot be reached" in quick.last_words())


def test_stop_is_clean_even_in_mid_stream() -> None:
    engine = start(fake_lane(step_seconds=0.01, **ROOMY))
    folder = Path(engine.address.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with connected(engine) as socket:
        socket.send(endless("x"))
        until(lambda: socket.stats().lanes["a"].running == 1)
        engine.stop(timeout=PATIENCE)
    assert engine.returncode == 0
    assert not engine.alive()
    assert not folder.exists()
    engine.stop()


def test_a_killed_engine_is_noticed_and_can_be_replaced() -> None:
    engine = start()
    with connected(engine):
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: not engine.alive())
    assert engine.returncode == -signal.SIGKILL
    engine.stop()


def test_stop_before_it_has_loaded() -> None:
    engine = start()
    engine.stop(timeout=PATIENCE)
    assert engine.returncode is not None


def test_a_model_that_does_not_load_is_named() -> None:
    engine = start(fake_lane(), fake_lane("b", broken="no such weights"))
    until(lambda: not engine.alive())
    assert engine.returncode == 2
    assert engine.refusal() == "lane 'b' cannot be opened: no such weights"
    engine.stop()


def test_an_address_that_cannot_be_bound_is_named() -> None:
    engine = launch(EngineConfig(lanes=(fake_lane(),), address="nonsense://x"), command=FAKE)
    until(lambda: not engine.alive())
    assert engine.returncode == 2
    assert "cannot bind 'nonsense://x'" in engine.last_words()
    engine.stop()


def test_an_address_in_use_is_left_to_whoever_has_it(quick: EngineProcess) -> None:
    engine = launch(EngineConfig(lanes=(fake_lane(),), address=quick.address), command=FAKE)
    until(lambda: not engine.alive())
    assert engine.refusal() == f"cannot bind {quick.address!r}: address already in use"
    engine.stop()
    with connected(quick) as socket:
        assert socket.run([request("x", PROMPT)])["x"].ids == naive_greedy(PROMPT, 12, eos=())


def test_what_an_engine_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    stale, plain = tmp_path / "stale", tmp_path / "plain"
    with socket_module.socket(socket_module.AF_UNIX) as left:
        left.bind(str(stale))
        left.listen()
        assert find_address_fault(f"ipc://{stale}") == "address already in use"
    plain.write_text("a letter")
    assert stale.exists()
    assert find_address_fault(f"ipc://{stale}") is None
    assert find_address_fault(f"ipc://{tmp_path / 'nothing'}") is None
    assert find_address_fault("tcp://127.0.0.1:1") is None
    assert find_address_fault(f"ipc://{plain}") == "there is a file that is no socket"


def test_abstract_addresses_are_looked_at_too() -> None:
    name = f"tiergate-test-{os.getpid()}"
    with socket_module.socket(socket_module.AF_UNIX) as taken:
        taken.bind(f"\0{name}")
        taken.listen()
        assert find_address_fault(f"ipc://@{name}") == "address already in use"
    assert find_address_fault(f"ipc://@{name}") is None


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    engine = launch(EngineConfig(lanes=(fake_lane(),), address=f"ipc://{tmp_path}/none/engine"), command=FAKE)
    until(lambda: not engine.alive())
    assert "No such file or directory" in engine.refusal()
    engine.stop()
    assert not (tmp_path / "none").exists()


def test_what_is_not_a_configuration_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tiergate.engine.process"],
        input=b'{"lanes": 5}\n',
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 2
    assert b"bad configuration" in done.stderr


PARENT = """
import sys
sys.path[:0] = {path!r}
from tiergate.engine import EngineConfig, LaneConfig, launch
engine = launch(EngineConfig(lanes=(LaneConfig(name="a", model="{{}}"),)), command={command!r})
print(engine.pid, engine.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to watch a process that is not a child")
def test_an_engine_does_not_outlive_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=sys.path, command=FAKE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid, address = parent.stdout.readline().split()
    watch = os.pidfd_open(int(pid))
    socket = EngineSocket(address.decode(), PATIENCE)
    socket.wait_ready()
    socket.close()
    parent.kill()
    parent.wait()
    assert select.select([watch], [], [], PATIENCE)[0], "the engine is still there"
    os.close(watch)
    parent.stdin.close()
    parent.stdout.close()
