"""The line protocol of a runner: one command a line on stdin, one JSON line on stdout.

It needs the standard library only, since it runs in the environment of a peer.
"""

import json
import os
import sys
import time
import traceback


def open_reply():
    """Takes stdout for the replies, and sends all that others print to stderr.

    Call it before anything else is imported: TensorFlow, and libraries that greet, then
    cannot put a line of their own between two replies.
    """
    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return reply


def serve(commands, reply):
    """Answers commands until `quit` or the end of stdin; waits without using the CPU.

    Args:
        commands: Dict from a command to a function of its words. What the function
            returns, a dict or `None`, is the reply; `seconds` is added where it does
            not say how long it took itself.
        reply: The stream that `open_reply` returned.
    """
    print(json.dumps({"ready": True}), file=reply)
    for line in sys.stdin:
        name, *words = line.split()
        if name == "quit":
            return
        start = time.perf_counter()
        try:
            answer = commands[name](*words) or {}
        except Exception as error:  # noqa: BLE001 - the caller gets it as the reply
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        answer.setdefault("seconds", time.perf_counter() - start)
        print(json.dumps(answer), file=reply)
