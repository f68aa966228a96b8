import contextlib
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq

from ppojob_trainer.rpc.client import Call, Caller, CallRefused, CallTimeout, Peer
from ppojob_trainer.rpc.keys import KeyRing, read_key_ring, write_key_folders
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.messages.scoring import Texts
from ppojob_trainer.rpc.methods import PUT_TEXTS, Method
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import ErrorKind, Nothing, RequestHeader, RequestId, encode


class Work(msgspec.Struct, frozen=True):
    items: list[int]


class Name(msgspec.Struct, frozen=True):
    name: str = ""


class Done(msgspec.Struct, frozen=True):
    """An answer: how often the work was done by now."""

    times: int


WORK = Method("work", Work, Done)
PING = Method("ping", Nothing, Nothing, once=False)
PINGS = Route(PING, lambda _: Nothing())
ID = RequestId(1, 7, "update", 0)
REQUEST = Work([0, 1])


class Counter:
    """Work that counts how often it was done, and is held up until it may go on."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.done = 0
        self.gate = threading.Event()
        if not is_held:
            self.gate.set()

    def __call__(self, _request: Work) -> Done:
        self.gate.wait(60)
        self.done += 1
        return Done(self.done)


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def peer(serve, counter: Counter) -> Peer:
    return serve([Route(WORK, counter), PINGS])


def test_work_under_way_is_joined_and_done_once(serve, caller_of):
    counter = Counter(is_held=True)
    peer = serve([Route(WORK, counter)])
    callers = [caller_of() for _ in range(2)]
    begun = [caller.start([Call(peer, WORK, REQUEST, ID)]) for caller in callers]
    time.sleep(0.3)
    counter.gate.set()
    for caller, pending in zip(callers, begun, strict=True):
        assert [answer.times for answer in caller.wait(pending)] == [1]
        assert caller.call(Call(peer, WORK, REQUEST, ID)).times == 1
    assert counter.done == 1


def test_answers_of_old_steps_and_of_an_earlier_life_are_forgotten(peer, caller_of):
    """A job that has gone back far must not keep all that it does until it has caught up."""
    caller = caller_of()

    def done(step: int, life: int) -> int:
        return caller.call(Call(peer, WORK, REQUEST, RequestId(1, step, "update", 0, life))).times

    assert [done(1000, 0), done(0, 1), done(1, 1), done(2, 1), done(3, 1)] == [1, 2, 3, 4, 5]
    assert [done(2, 1), done(3, 1)] == [4, 5], "the last two steps of this life are kept"
    assert [done(1, 1), done(1000, 0)] == [6, 7], "what is older is not"


def refusal(caller, peer, *args) -> CallRefused:
    with pytest.raises(CallRefused) as caught:
        caller.call(Call(peer, *args))
    return caught.value


def test_what_is_out_of_date_is_refused_and_not_done(serve, caller_of):
    counter = Counter()
    peer = serve([Route(WORK, counter)], attempt=2)
    id_ = RequestId(2, 7, "update")
    assert refusal(caller_of(), peer, WORK, REQUEST, ID).kind is ErrorKind.STALE_ATTEMPT
    assert counter.done == 0
    caller_of(attempt=5).call(Call(peer, WORK, REQUEST, id_))
    assert refusal(caller_of(attempt=5), peer, WORK, Work([1]), id_).kind is ErrorKind.CHANGED
    assert refusal(caller_of(attempt=4), peer, WORK, REQUEST, id_).kind is ErrorKind.FENCED
    assert counter.done == 1


def test_work_of_any_attempt_is_done_by_whichever_serves(serve, caller_of):
    """Its callers do not hear that the role was started again."""
    of_any = replace(WORK, has_attempt=False)
    peer = serve([Route(of_any, Counter())], attempt=3)
    answers = [caller_of().call(Call(peer, of_any, REQUEST, ID)) for _ in range(2)]
    assert [answer.times for answer in answers] == [1, 1]


def test_each_method_says_who_may_call_it(serve, caller_of):
    peer = serve([Route(WORK, Counter()), Route(PUT_TEXTS, lambda _: Nothing())])
    texts = Texts(BatchName(0, 1, "train"), 0, ["a"])
    caller_of("actorRollout").call(Call(peer, PUT_TEXTS, texts, ID))
    for role in ("controller", "reward"):
        kind = refusal(caller_of(role), peer, PUT_TEXTS, texts, ID).kind
        assert kind is ErrorKind.FORBIDDEN
    assert refusal(caller_of("reward"), peer, WORK, REQUEST, ID).kind is ErrorKind.FORBIDDEN


def test_a_key_of_another_job_gets_no_answer(peer, counter, caller_of, rings, tmp_path: Path):
    write_key_folders(tmp_path / "other", ("controller",))
    stranger = read_key_ring(tmp_path / "other" / "controller", "controller")
    ring = KeyRing("controller", stranger.secret, {**rings["controller"].public, **stranger.public})
    caller = caller_of(ring=ring)
    caller.default_deadline_seconds = 0.5
    with pytest.raises(CallTimeout, match=r"no answer to work within 0\.5 s"):
        caller.call(Call(peer, WORK, REQUEST, ID))
    assert counter.done == 0


def test_a_socket_without_curve_gets_no_answer(peer, counter):
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(f"tcp://{peer.host}:{peer.port}")
    socket.send_multipart([encode(RequestHeader(1, "work", 9, ID)), encode(REQUEST)])
    assert socket.poll(500) == 0
    socket.close()
    context.term()
    assert counter.done == 0


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"junk", b""], "header"),
        ([b""], "a header and a body"),
        ([encode(RequestHeader(1, "nothing", 1)), b""], "no method 'nothing'"),
        ([encode(RequestHeader(1, "work", 1, ID)), b"\xc1"], "work"),
        ([encode(RequestHeader(1, "work", 1, ID)), b"\x81\xa5items\x03"], "int"),
        ([encode(RequestHeader(1, "work", 1)), encode(REQUEST)], "request id"),
        ([b"x" * 5000, encode(REQUEST)], "a header and a body"),
        ([b"\x93\x01\xa2\xff\xfe\x01", encode(REQUEST)], "header"),
        ([encode(RequestHeader(1, "name", 1, ID)), b"\x81\xa4name\xa2\xff\xfe"], "name"),
        ([encode(RequestHeader(1, "name", 1, ID)), b"\x81\xa1x" + b"\x91" * 3000], "name"),
    ],
)
def test_malformed_messages_are_refused_and_the_server_lives(serve, caller_of, frames, words):
    counter = Counter()
    named = Method("name", Name, Nothing)
    peer = serve([Route(WORK, counter), PINGS, Route(named, lambda _: Nothing())])
    caller = caller_of()
    socket = caller._socket(peer)
    socket.send_multipart(frames)
    assert socket.poll(2000)
    _, body = socket.recv_multipart()
    assert words in msgspec.msgpack.decode(body)["message"]
    assert counter.done == 0
    caller.call(Call(peer, PING, Nothing()))


def test_calls_to_somebody_who_is_away_never_block(caller_of, free_peer):
    """ZeroMQ keeps 1,000 messages for him; what comes then must neither wait nor pile up."""
    caller = caller_of()
    socket = caller._socket(free_peer)
    for _ in range(3000):
        with contextlib.suppress(zmq.Again):
            socket.send(b"", zmq.NOBLOCK)
    caller.default_deadline_seconds = 0.1
    with pytest.raises(CallTimeout):
        caller.call(Call(free_peer, PING, Nothing()))
    assert socket.closed


SMALL = Method("small", Work, Done, limit_bytes=1000)


def test_a_body_above_the_methods_limit_is_neither_read_nor_sent(serve, free_peer, caller_of):
    """The server would end the connection instead of an answer: nobody would say what is wrong."""
    large, counter = Work([0] * 1001), Counter()
    unbound = replace(SMALL, limit_bytes=10_000)
    peer = serve([Route(SMALL, counter), Route(WORK, counter)])
    assert "at most 1000" in str(refusal(caller_of(), peer, unbound, large, ID))
    told = str(refusal(caller_of(), free_peer, SMALL, large, ID))
    assert told == "nobody: small: got a request of 1011 bytes: it would not be read; at most 1000"
    assert counter.done == 0


def test_a_message_above_all_limits_ends_its_connection_and_the_server_lives(serve, caller_of):
    counter = Counter()
    peer = serve([Route(SMALL, counter)])
    flood = caller_of()
    flood.default_deadline_seconds = 0.5
    with pytest.raises(CallTimeout):
        flood.call(Call(peer, WORK, Work([0] * 100_000), ID))
    assert refusal(caller_of(), peer, WORK, REQUEST, ID).kind is ErrorKind.BAD_REQUEST


def test_what_fails_tells_why_and_is_not_kept(serve, caller_of):
    def fail(request: Work | Nothing) -> Done:
        raise ValueError(f"no {type(request).__name__}")

    peer = serve([Route(WORK, fail), Route(PING, fail)])
    caller = caller_of()
    for call, word in (((PING, Nothing()), "Nothing"), ((WORK, REQUEST, ID), "Work")):
        failure = refusal(caller, peer, *call).failure
        assert (failure.kind, failure.message) == (ErrorKind.FAILED, f"ValueError: no {word}")
        assert "Traceback" in failure.detail


def test_no_message_is_left_lying_when_many_speak_at_once(peer, caller_of):
    longest: list[float] = []

    def ask(caller: Caller, *, is_work: bool) -> None:
        taken = 0.0
        for index in range(200):
            begin = time.monotonic()
            if is_work:
                caller.call(Call(peer, WORK, REQUEST, RequestId(1, 7, "update", index)))
            else:
                caller.call(Call(peer, PING, Nothing()))
            taken = max(taken, time.monotonic() - begin)
        longest.append(taken)

    threads = [
        threading.Thread(target=ask, args=(caller_of(),), kwargs={"is_work": number == 0})
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(longest) == 4
    assert max(longest) < 4.5  # one that is left lying waits for its repetition, 5 s later


def test_calls_to_many_peers_are_answered_in_the_order_of_the_calls(serve, caller_of):
    slow, quick = Counter(is_held=True), Counter()
    calls = [Call(serve([Route(WORK, one)]), WORK, REQUEST, ID) for one in (slow, quick)]
    quick.done = 10

    def watch() -> None:
        assert quick.done == 11
        slow.gate.set()

    assert [answer.times for answer in caller_of().call_all(calls, watch)] == [1, 11]


def test_what_the_watch_raises_ends_the_wait(serve, caller_of):
    counter = Counter(is_held=True)

    def watch() -> None:
        counter.gate.set()
        raise RuntimeError("the role is lost")

    with pytest.raises(RuntimeError, match="the role is lost"):
        caller_of().call(Call(serve([Route(WORK, counter)]), WORK, REQUEST, ID), watch)


def test_the_first_refusal_ends_the_wait_for_all(serve, caller_of):
    slow = Counter(is_held=True)
    peers = [serve([Route(WORK, slow)]), serve([Route(WORK, Counter())], attempt=2)]
    with pytest.raises(CallRefused):
        caller_of().call_all([Call(peer, WORK, REQUEST, ID) for peer in peers])
    assert slow.done == 0
    slow.gate.set()


def test_calls_that_are_started_wait_while_others_are_made(serve, caller_of):
    slow, quick = Counter(is_held=True), Counter()
    late, soon = (serve([Route(WORK, counter), PINGS]) for counter in (slow, quick))
    caller = caller_of()
    pending = caller.start([Call(late, WORK, REQUEST, ID)])
    assert caller.call(Call(soon, WORK, REQUEST, ID)).times == 1
    caller.call(Call(late, PING, Nothing()))  # over the connection that the answer comes by
    assert not pending.is_done
    slow.gate.set()
    assert caller.wait(pending)[0].times == 1
    assert pending.is_done


def test_work_may_be_answered_later_while_other_work_is_done(serve, caller_of):
    """As a row that waits for a tool, while the engine goes on with the others."""
    late: Future[Done] = Future()
    failed: Future[Done] = Future()
    handed_out = iter([late, failed])
    quick = Counter()
    other = Method("other", Work, Done)
    peer = serve([Route(WORK, lambda _: next(handed_out)), Route(other, quick)])
    caller = caller_of()
    pending = caller.start([Call(peer, WORK, REQUEST, ID)])
    assert caller.call(Call(peer, other, REQUEST, RequestId(1, 7, "other"))).times == 1
    assert not pending.is_done
    late.set_result(Done(7))
    assert caller.wait(pending)[0].times == 7
    assert caller.call(Call(peer, WORK, REQUEST, ID)).times == 7, "it is remembered as any answer"
    pending = caller.start([Call(peer, WORK, REQUEST, RequestId(1, 7, "update", 1))])
    failed.set_exception(RuntimeError("the tool is gone"))
    with pytest.raises(CallRefused, match="the tool is gone"):
        caller.wait(pending)


def test_calls_that_were_given_up_are_no_more_repeated(serve, caller_of):
    slow = Counter(is_held=True)
    peer = serve([Route(WORK, slow), PINGS])
    caller = caller_of()
    caller.default_deadline_seconds = 0.2
    caller.cancel(caller.start([Call(peer, WORK, REQUEST, ID)]))
    time.sleep(0.3)
    caller.call(Call(peer, PING, Nothing()))
    slow.gate.set()
    assert caller.call(Call(peer, WORK, REQUEST, ID)).times == 1
