//! Offerings that were refused lately and are not asked for again until a time.
//! It must not know who was refused.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::instance::OfferingKey;

/// How long a refused offering is left alone. Karpenter's three minutes (spec/aws.md §0.2).
pub const HOLD: SignedDuration = SignedDuration::from_mins(3);

/// Offerings held down until a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    until: BTreeMap<OfferingKey, Timestamp>,
}

impl Holds {
    /// Holds an offering down until a time, or until later where it is held already.
    pub fn hold(&mut self, offering: OfferingKey, until: Timestamp) {
        let own = self.until.entry(offering).or_insert(until);
        *own = (*own).max(until);
    }

    /// Whether the offering is held down at `now`.
    pub fn is_held(&self, offering: &OfferingKey, now: Timestamp) -> bool {
        self.until.get(offering).is_some_and(|until| *until > now)
    }

    /// Until when the offering is held down, if it ever was.
    pub fn until(&self, offering: &OfferingKey) -> Option<Timestamp> {
        self.until.get(offering).copied()
    }

    /// Forgets what is not held down any more.
    pub fn expire(&mut self, now: Timestamp) {
        self.until.retain(|_, until| *until > now);
    }
}
