"""A real Mooncake engine behind JSON lines: one command a line on stdin, one answer a line on stdout. interop_test.go drives it.

Memory is one buffer of the size given as argument, registered as a whole; offsets in commands are within it, addresses are the peer's.
"""
import ctypes
import importlib.metadata
import json
import os
import sys
import time

out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the library prints to standard output

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode  # noqa: E402

size = int(sys.argv[1])
engine = TransferEngine()
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
    sys.exit("the Mooncake engine can't be initialised")
memory = ctypes.create_string_buffer(size)
base = ctypes.addressof(memory)
if engine.register_memory(base, size) != 0:
    sys.exit("memory can't be registered")


def pattern(offset, length, seed):
    block = bytes((i * 131 + seed * 31 + (i >> 8) * 17) & 255 for i in range(65521))
    whole = block * (length // len(block) + 1)
    ctypes.memmove(base + offset, whole, length)


def command(c):
    op = c["op"]
    if op == "fill":
        pattern(c["offset"], c["length"], c["seed"])
        return True
    if op == "get":
        return ctypes.string_at(base + c["offset"], c["length"]).hex()
    if op == "write":
        return engine.transfer_sync_write(c["peer"], base + c["offset"], c["addr"], c["length"])
    if op == "read":
        return engine.transfer_sync_read(c["peer"], base + c["offset"], c["addr"], c["length"])
    if op == "batch":
        return engine.batch_transfer_sync_write(c["peer"], [base + o for o in c["offsets"]], c["addrs"], c["lengths"])
    if op == "notify":
        return engine.transfer_sync(c["peer"], base + c["offset"], c["addr"], c["length"], TransferOpcode.Write, TransferNotify(c["name"], c["msg"]))
    if op == "notifies":
        return [[n.name, n.msg] for n in engine.get_notifies()]
    if op == "probe":
        return engine.send_probe(c["peer"])
    if op == "first":
        return engine.get_first_buffer_address(c["peer"])
    raise ValueError(op)


print(json.dumps({"name": f"127.0.0.1:{engine.get_rpc_port()}", "base": base, "version": importlib.metadata.version("mooncake-transfer-engine-non-cuda")}), file=out)
for line in sys.stdin:
    begin = time.monotonic()
    try:
        answer = {"result": command(json.loads(line))}
    except Exception as e:
        answer = {"error": f"{type(e).__name__}: {e}"}
    answer["seconds"] = time.monotonic() - begin
    print(json.dumps(answer), file=out)
out.flush()
os._exit(0)  # the engine's destructors may hang
