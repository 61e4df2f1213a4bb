"""Replies as they come over the wire: in one piece, in several, and of every shape that scripts answer with."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from leasehold.stores.redis.wire import Inbox, Incomplete, parse, parse_usual

REPLIES = {
    b":1\r\n": 1,
    b":-1\r\n": -1,
    b"+OK\r\n": b"OK",
    b"$-1\r\n": None,
    b"*-1\r\n": None,
    b"*0\r\n": [],
    b"$4\r\na\r\nb\r\n": b"a\r\nb",
    b"*3\r\n:1\r\n:1794785665339270\r\n:1794785665339280\r\n": [1, 1794785665339270, 1794785665339280],
    b"*3\r\n:0\r\n:-1\r\n:5\r\n": [0, -1, 5],
    b"*2\r\n:1\r\n*1\r\n:5\r\n": [1, [5]],
    b"*2\r\n:-1\r\n$6\r\nlock 1\r\n": [-1, b"lock 1"],
    b"*4\r\n:1\r\n:7\r\n:8\r\n$2\r\n\r\n\r\n": [1, 7, 8, b"\r\n"],
    b"*2\r\n*1\r\n:1\r\n*1\r\n$1\r\nx\r\n": [[1], [b"x"]],
}


@pytest.mark.parametrize(("data", "value"), REPLIES.items())
def test_a_reply(data: bytes, value: object) -> None:
    assert parse(data, 0) == (value, len(data))
    assert parse(b":7\r\n" + data, 4) == (value, len(data) + 4)
    assert parse_usual(data) in (value, None)
    for cut in range(len(data)):
        with pytest.raises(Incomplete):
            parse(data[:cut], 0)
        assert parse_usual(data[:cut]) is None


def test_the_usual_ones_are_known() -> None:
    assert parse_usual(b":0\r\n") == 0
    assert parse_usual(b"*3\r\n:1\r\n:7\r\n:8\r\n") == [1, 7, 8]
    assert parse_usual(b"*5\r\n:0\r\n:-1\r\n:7\r\n:0\r\n:8\r\n") == [0, -1, 7, 0, 8]
    assert parse_usual(b"*3\r\n:1\r\n:7\r\n*0\r\n") is None
    assert parse_usual(b":1\r\n:2\r\n") is None, "more than was asked for"


def test_an_inbox_takes_messages_however_they_are_cut_up() -> None:
    subscribed = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nhere\r\n:1\r\n"
    messages = [b"*3\r\n$7\r\nmessage\r\n$4\r\nhere\r\n$%d\r\n%b\r\n" % (len(each), each) for each in (b"a\r\nb", b"c")]
    pong = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    stream = subscribed + messages[0] + pong + messages[1]
    for first in range(1, len(stream)):
        for second in (first + 1, first + 7, len(stream)):
            inbox, taken = Inbox(b"here"), []
            for piece in (stream[:first], stream[first:second], stream[second:]):
                if piece:
                    inbox.add(piece)
                while (payload := inbox.take()) is not None:
                    taken.append(payload)
            assert taken == [b"", b"a\r\nb", b"", b"c"]


def test_an_inbox_raises_what_the_server_refuses() -> None:
    inbox = Inbox(b"here")
    inbox.add(b"-NOPERM no access to this channel\r\n")
    with pytest.raises(ResponseError, match="NOPERM"):
        inbox.take()
    with pytest.raises(RedisConnectionError):
        inbox.add(b"")
