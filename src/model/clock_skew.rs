//! The clock skew between this host and another system, and the limit above which it is a fault.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::model::named_enum::named_enum;

/// Above this clock skew, the engine performs no voluntary disruption, because it could misjudge
/// ages and deadlines that other programs have written. Source: docs/decisions/038-clocks.md.
pub const SKEW_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Above this clock skew, `outrigger doctor` warns.
pub const SKEW_TOLD: SignedDuration = SignedDuration::from_secs(2);

/// Resolution of the time in an HTTP header.
const TICK: SignedDuration = SignedDuration::from_secs(1);

named_enum! {
    /// The system whose clock is compared. The names are values of the metrics label `peer`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ClockPeer {
        /// The cluster's API server.
        ApiServer => "api_server",
        /// AWS.
        Aws => "aws",
    }
}

/// The skew of this host's clock against another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSkew {
    /// The system with which this host's clock is compared.
    pub peer: ClockPeer,
    /// How far this host's clock is ahead. Negative if it is behind.
    pub ahead: SignedDuration,
}

impl ClockSkew {
    /// Estimates the skew from the time in a response and the local times of the request and the
    /// response. Returns the smallest skew that explains these times, so a slow response is not
    /// reported as skew.
    pub fn estimate(peer_time: Timestamp, sent: Timestamp, received: Timestamp) -> SignedDuration {
        if peer_time > received {
            return received.duration_since(peer_time);
        }
        (sent.duration_since(peer_time) - TICK).max(SignedDuration::ZERO)
    }

    /// Returns whether voluntary disruption is blocked.
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
        let peer = match self.peer {
            ClockPeer::ApiServer => "the API server's",
            ClockPeer::Aws => "that of AWS",
        };
        write!(f, "the clock of this host is {seconds} s {side} {peer}")
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{ClockPeer, ClockSkew};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("in range")
    }

    #[test]
    fn response_time_is_not_counted_as_skew() {
        for (server_time, sent, received, ahead) in [
            (0, 0, 0, 0),
            // The response time has no fraction of a second.
            (0, 1, 1, 0),
            (0, 2, 2, 1),
            (0, -30, 30, 0),
            (0, 61, 62, 60),
            (3, 0, 0, -3),
            (130, 9, 10, -120),
            (3600, 0, 1, -3599),
        ] {
            let skew = ClockSkew::estimate(at(server_time), at(sent), at(received));
            assert_eq!(skew, SignedDuration::from_secs(ahead), "{server_time} {sent} {received}");
        }
    }

    #[test]
    fn skew_over_ten_seconds_is_a_fault_in_both_directions() {
        for (ahead, fault, text) in [
            (10, false, "the clock of this host is 10 s ahead of the API server's"),
            (11, true, "the clock of this host is 11 s ahead of the API server's"),
            (-11, true, "the clock of this host is 11 s behind the API server's"),
        ] {
            let ahead = SignedDuration::from_secs(ahead);
            let skew = ClockSkew { peer: ClockPeer::ApiServer, ahead };
            assert_eq!((skew.is_fault(), skew.to_string().as_str()), (fault, text));
        }
    }
}
