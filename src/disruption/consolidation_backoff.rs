//! Tracks whether consolidations achieve their savings, and puts a pool in back-off if they do not.
//!
//! A plan predicts where pods fit, but kube-scheduler decides where they are bound. If it
//! repeatedly binds them to other nodes, new nodes are launched for the moved pods, the planned
//! nodes are wasted, and the next consolidation tries to remove them.

use jiff::{SignedDuration, Timestamp};

/// Consolidations within this time are judged together.
const TOGETHER: SignedDuration = SignedDuration::from_mins(10);

/// Back-off of a pool after its last consolidation, for one, two and more unprofitable rounds in a
/// row. After three such rounds, only a changed cluster makes consolidation profitable.
const RESTS: [SignedDuration; 3] = [
    SignedDuration::from_mins(10),
    SignedDuration::from_hours(1),
    SignedDuration::from_hours(7 * 24),
];

/// Highest fraction of the expected savings that may be lost.
pub const LOST_MAX: f64 = 0.5;

/// Result of the last consolidations of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConsolidationBackoff {
    /// Expected savings in $/h.
    saved: f64,
    /// Price in $/h of nodes launched for the moved pods.
    lost: f64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    /// Number of unprofitable rounds in a row.
    vain: usize,
}

impl ConsolidationBackoff {
    /// Records the start of a consolidation with its expected savings in $/h.
    pub fn record_consolidation(&mut self, saves: f64, now: Timestamp) {
        if self.first.is_none_or(|first| now.duration_since(first) >= TOGETHER)
            || self.is_unprofitable()
        {
            self.vain = if self.is_unprofitable() { self.vain + 1 } else { 0 };
            (self.saved, self.lost, self.first) = (0.0, 0.0, Some(now));
        }
        self.saved += saves;
        self.last = Some(now);
    }

    /// Records that a node is kept after all, with its expected savings in $/h.
    pub fn record_retained(&mut self, saves: f64) {
        self.saved = (self.saved - saves).max(0.0);
    }

    /// Records a node, with its price in $/h, that was launched for moved pods.
    pub fn record_launch(&mut self, costs: f64) {
        self.lost += costs;
    }

    /// Returns the end of the back-off, if the last consolidations were unprofitable.
    pub fn back_off_until(&self) -> Option<Timestamp> {
        let last = self.last.filter(|_| self.is_unprofitable())?;
        let back_off = RESTS[self.vain.min(RESTS.len() - 1)];
        Some(last.checked_add(back_off).unwrap_or(Timestamp::MAX))
    }

    fn is_unprofitable(&self) -> bool {
        self.lost > self.saved * LOST_MAX
    }

    /// Returns the expected and the lost savings of the last consolidations, in $/h.
    pub fn expected_and_lost(&self) -> (f64, f64) {
        (self.saved, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::ConsolidationBackoff;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(60 * minute).expect("in range")
    }

    #[test]
    fn unprofitable_consolidations_increase_the_back_off() {
        let mut backoff = ConsolidationBackoff::default();
        assert_eq!(backoff.back_off_until(), None);
        let mut now = 0;
        for minutes in [10, 60, 10_080, 10_080] {
            backoff.record_consolidation(1.0, at(now));
            assert_eq!(backoff.back_off_until(), None, "nothing is lost yet");
            backoff.record_launch(0.6);
            assert_eq!(backoff.back_off_until(), Some(at(now + minutes)));
            now += minutes;
        }
        // A profitable consolidation resets the losses.
        backoff.record_consolidation(1.0, at(now));
        backoff.record_launch(0.4);
        assert_eq!(backoff.back_off_until(), None);
        backoff.record_consolidation(1.0, at(now + 10));
        backoff.record_launch(0.6);
        assert_eq!(backoff.back_off_until(), Some(at(now + 20)), "for ten minutes again");
    }

    #[test]
    fn retained_nodes_count_neither_as_savings_nor_as_losses() {
        let mut backoff = ConsolidationBackoff::default();
        backoff.record_consolidation(1.0, at(0));
        backoff.record_retained(1.0);
        assert_eq!(backoff.back_off_until(), None);
        backoff.record_consolidation(1.0, at(1));
        backoff.record_consolidation(1.0, at(1));
        backoff.record_retained(1.0);
        backoff.record_launch(0.6);
        assert_eq!(backoff.expected_and_lost(), (1.0, 0.6));
        assert_eq!(backoff.back_off_until(), Some(at(11)));
    }

    #[test]
    fn consecutive_consolidations_are_judged_together() {
        let mut backoff = ConsolidationBackoff::default();
        backoff.record_consolidation(1.0, at(0));
        backoff.record_launch(0.25);
        backoff.record_consolidation(1.0, at(9));
        backoff.record_launch(0.5);
        assert_eq!(backoff.expected_and_lost(), (2.0, 0.75));
        assert_eq!(backoff.back_off_until(), None);
        backoff.record_launch(0.5);
        assert_eq!(backoff.back_off_until(), Some(at(19)));
    }
}
