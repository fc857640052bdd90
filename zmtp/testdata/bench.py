"""pyzmq's side of the benchmarks, two processes. Prints one number.

rtt N           median round trip in ns of N, PUSH/PULL there and PUSH/PULL back
throughput N S  messages per second, N messages of S bytes from one PUSH to one PULL, first to last as the receiver sees them
"""

import subprocess
import sys
import time

import zmq


def pull(ctx):
    s = ctx.socket(zmq.PULL)
    s.setsockopt(zmq.RCVHWM, 10000)
    s.bind("tcp://127.0.0.1:0")
    return s, s.getsockopt_string(zmq.LAST_ENDPOINT)


def push(ctx, endpoint):
    s = ctx.socket(zmq.PUSH)
    s.setsockopt(zmq.SNDHWM, 10000)
    s.connect(endpoint)
    return s


def child(*args):
    p = subprocess.Popen([sys.executable, __file__, *args], stdout=subprocess.PIPE, text=True)
    return p, p.stdout.readline().strip()


def echo(back):
    ctx = zmq.Context()
    inn, endpoint = pull(ctx)
    print(endpoint, flush=True)
    out = push(ctx, back)
    while m := inn.recv():
        out.send(m)


def rtt(n):
    ctx = zmq.Context()
    inn, endpoint = pull(ctx)
    p, there = child("echo", endpoint)
    out = push(ctx, there)
    m, times = b"x" * 64, []
    for i in range(n + n // 10):
        t = time.perf_counter_ns()
        out.send(m)
        inn.recv()
        times.append(time.perf_counter_ns() - t)
    out.send(b"")
    p.wait()
    times = sorted(times[n // 10:])  # the first tenth warms up
    print(times[len(times) // 2])


def sink(n):
    s, endpoint = pull(zmq.Context())
    print(endpoint, flush=True)
    s.recv()
    t = time.perf_counter()
    for _ in range(n - 1):
        s.recv()
    print((n - 1) / (time.perf_counter() - t), flush=True)


def throughput(n, size):
    p, endpoint = child("sink", str(n))
    s = push(zmq.Context(), endpoint)
    m = b"x" * size
    for _ in range(n):
        s.send(m)
    print(p.stdout.readline().strip())
    p.wait()


mode, *rest = sys.argv[1:]
if mode == "echo":
    echo(rest[0])
else:
    {"rtt": rtt, "sink": sink, "throughput": throughput}[mode](*map(int, rest))
