"""What goes wrong on purpose: faults by action, a number of times or by seeded chance.

It must not know what any call does.
"""

import contextlib
import itertools
import random
import socket
import threading
import time

KINDS = ("drop", "delay", "unavailable", "throttle", "stale", "error", "hold")
FIELDS = ("do", "action", "kind", "key", "times", "skip", "probability", "seed", "seconds",
          "after", "code", "message", "status")
# What a held call is about, by whichever parameter says so.
NAMING = ("InstanceIds", "LaunchTemplateName", "ClientToken")


class Dropped(ConnectionAbortedError):
    """The caller gets no answer."""


class Faults:
    """Rules that tests write, and the calls that are held by them."""

    def __init__(self):
        self.lock = threading.Condition()
        self.rules = []
        self.holding = {}
        self.numbers = itertools.count(1)
        # Calls that were let go and whose answers are not written yet.
        self.leaving = set()

    def add(self, command):
        """`action` is "CreateFleet", "ec2:CreateFleet", "ec2:*" or "*"; the rule counts for `times`
        calls (one, or with null any number) after the first `skip`, each with `probability`.
        With `after` the fault comes when moto has done its work, without it before; with `key` it
        comes to callers with that access key alone."""
        unknown = set(command) - set(FIELDS)
        if unknown or command.get("kind") not in KINDS:
            raise ValueError(f"no such fault: {command}")
        rule = {"times": 1, "skip": 0, "probability": 1.0, "after": command["kind"] == "drop"}
        rule.update(command)
        rule["chance"] = random.Random(rule.get("seed", 1))
        with self.lock:
            self.rules.append(rule)

    def clear(self, key=None):
        """No more faults, and all that is held goes on; with a key, no more faults for that caller,
        and what is held stays so."""
        with self.lock:
            self.rules = [rule for rule in self.rules if key and rule.get("key") != key]
        if key is None:
            self.release()

    def of(self, call):
        """The first rule that meets a call; asking counts as meeting."""
        with self.lock:
            for rule in self.rules:
                service, _, action = rule["action"].rpartition(":")
                if service not in ("", call.service) or action not in ("*", call.action):
                    continue
                if rule.get("key") not in (None, call.key):
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
        time.sleep(rule.get("seconds", 1 if rule["kind"] == "delay" else 0))
        if rule["kind"] != "hold":
            return
        with self.lock:
            call.number = next(self.numbers)
            self.holding[call.number] = call
            self.lock.wait_for(lambda: call.number not in self.holding)
        if call.lost:
            hang_up(call)

    def held(self, key=None):
        """The calls that are held, the oldest first."""
        with self.lock:
            return [call for call in self.holding.values() if key in (None, call.key)]

    def release(self, numbers=None, lost=False):
        """Lets what is held go on, all of it or these; or has it get lost on its way."""
        with self.lock:
            for number in list(self.holding) if numbers is None else numbers:
                call = self.holding.pop(number, None)
                if call is not None:
                    call.lost = lost
                    self.leaving.add(number)
            self.lock.notify_all()

    def written(self, call):
        """The answer of a call has left, or nobody is there to take it."""
        with self.lock:
            self.leaving.discard(call.number)


def hang_up(call):
    """Closes the connection without an answer, whatever the client thinks of keeping it."""
    link = call.environ.get("werkzeug.socket")
    if link is not None:
        # Whoever is dead has hung up before.
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
    raise Dropped("the answer is dropped")
