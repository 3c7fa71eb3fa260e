//! Whether moves save what they were made for, and for how long a pool rests where they do not.
//! It must not know which nodes or pods were moved.
//!
//! A plan says where pods fit; where they go, the scheduler says. Where it goes otherwise again and
//! again, nodes have to be made for pods that were moved, these are wasted, and the next move is to
//! save that.

use jiff::{SignedDuration, Timestamp};

/// Moves that follow each other within this time are judged together.
const TOGETHER: SignedDuration = SignedDuration::from_mins(10);

/// How long a pool rests, counted from its last move, when moves were not worth it once, twice in a
/// row, or more often: then it takes another cluster to make them so.
const RESTS: [SignedDuration; 3] = [
    SignedDuration::from_mins(10),
    SignedDuration::from_hours(1),
    SignedDuration::from_hours(7 * 24),
];

/// Of what was to be saved, more than so much may not be lost again.
pub const LOST_MAX: f64 = 0.5;

/// What has come of the last moves of one pool's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConsolidationBackoff {
    /// What they were to save, in $/h.
    saved: f64,
    /// What nodes cost that had to be made for the pods that were moved, in $/h.
    lost: f64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    /// How many times in a row they have not been worth it.
    vain: usize,
}

impl ConsolidationBackoff {
    /// Nodes begin to leave, which is to save so much, in $/h.
    pub fn moved(&mut self, saves: f64, now: Timestamp) {
        let together = |first: Timestamp| now.duration_since(first) < TOGETHER;
        if !self.first.is_some_and(together) || self.is_vain() {
            self.vain = if self.is_vain() { self.vain + 1 } else { 0 };
            (self.saved, self.lost, self.first) = (0.0, 0.0, Some(now));
        }
        self.saved += saves;
        self.last = Some(now);
    }

    /// A node stays after all that was to save so much, in $/h.
    pub fn stays(&mut self, saves: f64) {
        self.saved = (self.saved - saves).max(0.0);
    }

    /// A node was made for pods that had been moved, which costs so much, in $/h.
    pub fn lost(&mut self, costs: f64) {
        self.lost += costs;
    }

    /// Until when the pool rests, if the last moves were not worth it.
    pub fn rests_until(&self) -> Option<Timestamp> {
        let last = self.last.filter(|_| self.is_vain())?;
        let rest = RESTS[self.vain.min(RESTS.len() - 1)];
        Some(last.checked_add(rest).unwrap_or(Timestamp::MAX))
    }

    fn is_vain(&self) -> bool {
        self.lost > self.saved * LOST_MAX
    }

    /// What the last moves were to save, and what was lost of it, in $/h.
    pub fn figures(&self) -> (f64, f64) {
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
    fn moves_in_vain_are_made_twice_more_and_then_hardly_ever() {
        let mut churn = ConsolidationBackoff::default();
        assert_eq!(churn.rests_until(), None);
        let mut now = 0;
        for rest in [10, 60, 10_080, 10_080] {
            churn.moved(1.0, at(now));
            assert_eq!(churn.rests_until(), None, "nothing is lost yet");
            churn.lost(0.6);
            assert_eq!(churn.rests_until(), Some(at(now + rest)));
            now += rest;
        }
        // Once it is worth it again, all is forgotten.
        churn.moved(1.0, at(now));
        churn.lost(0.4);
        assert_eq!(churn.rests_until(), None);
        churn.moved(1.0, at(now + 10));
        churn.lost(0.6);
        assert_eq!(
            churn.rests_until(),
            Some(at(now + 20)),
            "for ten minutes again"
        );
    }

    #[test]
    fn nodes_that_stay_save_nothing_and_lose_nothing() {
        let mut churn = ConsolidationBackoff::default();
        churn.moved(1.0, at(0));
        churn.stays(1.0);
        assert_eq!(churn.rests_until(), None);
        churn.moved(1.0, at(1));
        churn.moved(1.0, at(1));
        churn.stays(1.0);
        churn.lost(0.6);
        assert_eq!(churn.figures(), (1.0, 0.6));
        assert_eq!(churn.rests_until(), Some(at(11)));
    }

    #[test]
    fn moves_soon_after_another_are_judged_together() {
        let mut churn = ConsolidationBackoff::default();
        churn.moved(1.0, at(0));
        churn.lost(0.25);
        churn.moved(1.0, at(9));
        churn.lost(0.5);
        assert_eq!(churn.figures(), (2.0, 0.75));
        assert_eq!(churn.rests_until(), None);
        churn.lost(0.5);
        assert_eq!(churn.rests_until(), Some(at(19)));
    }
}
