//! How far the clock of this host differs from another, and when that is a fault.
//! It must not know how a clock is read.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// Beyond this the engine does nothing voluntary: it could misjudge ages and deadlines that other
/// programs have written. Source: docs/decisions/038-clocks.md.
pub const SKEW_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Beyond this `outrigger doctor` warns.
pub const SKEW_TOLD: SignedDuration = SignedDuration::from_secs(2);

/// The time in an HTTP header has whole seconds.
const TICK: SignedDuration = SignedDuration::from_secs(1);

/// The other clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockPeer {
    /// That of the cluster's API server.
    ApiServer,
    /// That of AWS.
    Aws,
}

impl ClockPeer {
    /// The value of the label `peer` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiServer => "api_server",
            Self::Aws => "aws",
        }
    }
}

/// How far the clock of this host is ahead of another; negative where it is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSkew {
    /// The other clock.
    pub peer: ClockPeer,
    /// By how much this host's is ahead.
    pub ahead: SignedDuration,
}

impl ClockSkew {
    /// What the time in an answer says, given the time here when the request was sent and when the
    /// answer came: the least that explains it, so that a slow answer is no skew.
    pub fn estimate(said: Timestamp, sent: Timestamp, came: Timestamp) -> SignedDuration {
        if said > came {
            return came.duration_since(said);
        }
        (sent.duration_since(said) - TICK).max(SignedDuration::ZERO)
    }

    /// Whether nothing voluntary may be done.
    pub fn is_fault(&self) -> bool {
        self.ahead.abs() > SKEW_MAX
    }
}

impl fmt::Display for ClockSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.ahead.as_secs().unsigned_abs();
        let side = match self.ahead.is_negative() {
            true => "behind",
            false => "ahead of",
        };
        let whose = match self.peer {
            ClockPeer::ApiServer => "the API server's",
            ClockPeer::Aws => "that of AWS",
        };
        write!(f, "the clock of this host is {seconds} s {side} {whose}")
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{ClockPeer, ClockSkew};

    #[test]
    fn a_slow_answer_is_no_skew() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).expect("in range");
        for (said, sent, came, ahead) in [
            (0, 0, 0, 0),
            // Its fraction of a second is cut off.
            (0, 1, 1, 0),
            (0, 2, 2, 1),
            (0, -30, 30, 0),
            (0, 61, 62, 60),
            (3, 0, 0, -3),
            (130, 9, 10, -120),
            (3600, 0, 1, -3599),
        ] {
            let skew = ClockSkew::estimate(at(said), at(sent), at(came));
            assert_eq!(
                skew,
                SignedDuration::from_secs(ahead),
                "{said} {sent} {came}"
            );
        }
    }

    #[test]
    fn more_than_ten_seconds_are_a_fault_on_either_side() {
        for (ahead, fault, text) in [
            (
                10,
                false,
                "the clock of this host is 10 s ahead of the API server's",
            ),
            (
                11,
                true,
                "the clock of this host is 11 s ahead of the API server's",
            ),
            (
                -11,
                true,
                "the clock of this host is 11 s behind the API server's",
            ),
        ] {
            let ahead = SignedDuration::from_secs(ahead);
            let skew = ClockSkew {
                peer: ClockPeer::ApiServer,
                ahead,
            };
            assert_eq!((skew.is_fault(), skew.to_string().as_str()), (fault, text));
        }
    }
}
