"""A libzmq peer for the tests: PULL or PUSH, driven by JSON lines on stdin, answering with JSON lines on stdout.

pull PORT   binds 127.0.0.1:PORT (0: a free one), prints {"port": N}; then reads commands
              {"recv": N}     receive N messages, print for each {"frames": [[length, sha256], ...]}
              {"count": N}    receive N messages of one decimal frame each, check that they are 0..N-1, print {"ordered": N}
              {"rest": MS}    receive until MS milliseconds pass without a message, print {"rest": [first frames as text]}
push ENDPOINT  connects; then reads commands
              {"send": [[[length, seed], ...], ...]}   messages; a frame is the first `length` bytes of SHAKE-128 of the seed
              {"numbers": [first, end]}                messages of one decimal frame each
              {"close": true}                          close with unlimited linger, print {"closed": true}, and exit
Each PUSH command is answered by {"sent": N}.
"""

import hashlib
import json
import sys

import zmq


def say(obj):
    print(json.dumps(obj), flush=True)


def pull(port):
    ctx = zmq.Context()
    s = ctx.socket(zmq.PULL)
    s.bind(f"tcp://127.0.0.1:{port}")
    say({"port": int(s.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])})
    for line in sys.stdin:
        cmd = json.loads(line)
        for _ in range(cmd.get("recv", 0)):
            frames = s.recv_multipart()
            say({"frames": [[len(f), hashlib.sha256(f).hexdigest()] for f in frames]})
        if "count" in cmd:
            for i in range(cmd["count"]):
                got = s.recv_multipart()
                if got != [str(i).encode()]:
                    say({"ordered": i, "got": [f.decode() for f in got]})
                    return
            say({"ordered": cmd["count"]})
        if "rest" in cmd:
            texts = []
            while s.poll(cmd["rest"]):
                texts.append(s.recv_multipart()[0].decode())
            say({"rest": texts})


def push(endpoint):
    ctx = zmq.Context()
    s = ctx.socket(zmq.PUSH)
    s.setsockopt(zmq.RECONNECT_IVL, 20)
    s.connect(endpoint)
    for line in sys.stdin:
        cmd = json.loads(line)
        sent = 0
        for m in cmd.get("send", []):
            s.send_multipart([hashlib.shake_128(seed.encode()).digest(n) for n, seed in m])
            sent += 1
        for i in range(*cmd.get("numbers", [0, 0])):
            s.send(str(i).encode())
            sent += 1
        if "close" in cmd:
            s.close(linger=-1)
            ctx.term()
            say({"closed": True})
            return
        say({"sent": sent})


{"pull": pull, "push": push}[sys.argv[1]](sys.argv[2])
