"""What goes wrong on purpose: faults by action, a number of times or by seeded chance.

It must not know what any call does.
"""

import random
import socket
import threading
import time

KINDS = ("drop", "delay", "unavailable", "throttle", "stale", "error", "hold")
FIELDS = ("do", "action", "kind", "times", "skip", "probability", "seed", "seconds", "after",
          "code", "message", "status")


class Dropped(ConnectionAbortedError):
    """The caller gets no answer."""


class Faults:
    """Rules that tests write, and the calls that are held by them."""

    def __init__(self):
        self.lock = threading.Condition()
        self.rules = []
        self.holding = []
        self.released = 0

    def add(self, command):
        """`action` is "CreateFleet", "ec2:CreateFleet", "ec2:*" or "*"; the rule counts for `times`
        calls (one, or with null any number) after the first `skip`, each with `probability`.
        With `after` the fault comes when moto has done its work, without it before."""
        unknown = set(command) - set(FIELDS)
        if unknown or command.get("kind") not in KINDS:
            raise ValueError(f"no such fault: {command}")
        rule = {"times": 1, "skip": 0, "probability": 1.0, "after": command["kind"] == "drop"}
        rule.update(command)
        rule["chance"] = random.Random(rule.get("seed", 1))
        with self.lock:
            self.rules.append(rule)

    def clear(self):
        with self.lock:
            self.rules.clear()
        self.release()

    def of(self, call):
        """The first rule that meets a call; asking counts as meeting."""
        with self.lock:
            for rule in self.rules:
                service, _, action = rule["action"].rpartition(":")
                if service not in ("", call.service) or action not in ("*", call.action):
                    continue
                if rule["times"] == 0:
                    continue
                if rule["skip"] > 0:
                    rule["skip"] -= 1
                    continue
                if rule["chance"].random() >= rule["probability"]:
                    continue
                if rule["times"] is not None:
                    rule["times"] -= 1
                return rule
        return None

    def wait(self, rule, call):
        """What delays a call, or holds it until a test says to go on."""
        if rule["kind"] == "delay":
            time.sleep(rule.get("seconds", 1))
        if rule["kind"] == "hold":
            with self.lock:
                self.holding.append(call.name)
                seen = self.released
                self.lock.wait_for(lambda: self.released > seen)

    def release(self):
        """Lets all that is held go on."""
        with self.lock:
            self.holding.clear()
            self.released += 1
            self.lock.notify_all()


def hang_up(call):
    """Closes the connection without an answer, whatever the client thinks of keeping it."""
    link = call.environ.get("werkzeug.socket")
    if link is not None:
        link.shutdown(socket.SHUT_RDWR)
    raise Dropped("the answer is dropped")
