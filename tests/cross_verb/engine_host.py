"""Holds the real engine for engine_door.cpp: one process loads libtorch once and runs what `lockstep train` asks for.

    engine_host.py LIBRARY SOCKET
"""
import ctypes
import os
import socket
import sys
import threading

MESSAGE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Host(ctypes.Structure):
    """LockstepEngineHost."""
    _fields_ = [("context", ctypes.c_void_p), ("message", MESSAGE), ("stop_requested", STOP)]


def serve(engine, connection):
    with connection, connection.makefile("rb") as incoming:
        verb = incoming.readline().strip()
        request = incoming.read(int(incoming.readline()))
        lock = threading.Lock()

        def message(_, text):
            with lock:
                connection.sendall(text.replace(b"\n", b" ") + b"\n")

        host = Host(None, MESSAGE(message), STOP(lambda _: 0))
        code = engine.lockstep_engine_call(verb, request, ctypes.byref(host))
        connection.sendall(b"exit %d\n" % code)


def main():
    library, path = sys.argv[1:]
    engine = ctypes.CDLL(library)
    engine.lockstep_engine_call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Host)]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(8)
    parent = os.getppid()
    listener.settimeout(5)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        serve(engine, connection)  # one at a time: the number of compute threads belongs to the process


if __name__ == "__main__":
    main()
