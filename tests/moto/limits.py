"""The request limits of EC2 in one region of the account: token buckets by API, and one of instances.

EC2 documents them in "Request throttling for the Amazon EC2 API". CreateFleet has no row there; in
the field it shares the bucket of RunInstances. It must not decide what a refusal looks like (`wire`).
"""

import time

# Size and refill per second, as a default account has them.
DEFAULTS = {
    "launches": (5, 2.0),
    "changes": (50, 5.0),
    "reads": (100, 20.0),
    "instances": (1000, 2.0),
}
LAUNCHES = {"CreateFleet", "RunInstances"}


class Bucket:
    """Tokens that are refilled at a constant rate."""

    def __init__(self, size, rate, now):
        self.size, self.rate = size, rate
        self.tokens, self.at = float(size), now

    def refill(self, now):
        self.tokens = min(self.size, self.tokens + (now - self.at) * self.rate)
        self.at = now

    def has(self, count, now):
        self.refill(now)
        return self.tokens >= count


class Limits:
    """The buckets of an account. Without limits, each call passes."""

    def __init__(self):
        self.limits = DEFAULTS
        self.buckets = {}

    def set(self, limits):
        """Sets size and rate by kind. Kinds that are not named keep the defaults of EC2, and None
        removes all limits."""
        unknown = set(limits or ()) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"no such limits: {sorted(unknown)}")
        self.limits = None if limits is None else {**DEFAULTS, **limits}
        self.buckets.clear()

    def passes(self, call):
        """Takes the tokens of a call. False if EC2 throttles it."""
        if self.limits is None or call.service != "ec2":
            return True
        now = time.monotonic()
        wanted = [(self.bucket(call, now), 1)]
        if call.action == "CreateFleet" and not call.params.get("DryRun"):
            target = (call.params.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity")
            wanted.append((self.one("instances", (call.region,), now), int(target or 1)))
        if not all(bucket.has(count, now) for bucket, count in wanted):
            return False
        for bucket, count in wanted:
            bucket.tokens -= count
        return True

    def bucket(self, call, now):
        if call.action in LAUNCHES:
            return self.one("launches", (call.region,), now)
        kind = "reads" if call.action.startswith(("Describe", "Get")) else "changes"
        return self.one(kind, (call.region, call.action), now)

    def one(self, kind, key, now):
        if (kind, key) not in self.buckets:
            self.buckets[kind, key] = Bucket(*self.limits[kind], now)
        return self.buckets[kind, key]
