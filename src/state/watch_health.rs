//! How far the watches of a cluster can be believed: synced, recent and whole, or not.
//! It must not know what is held back meanwhile.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::watched_object::ObjectKind;

/// A relist that lacks this many objects we knew, and more than one in `SHRUNK_SHARE`, is doubted.
const SHRUNK_MIN: usize = 3;
/// See `SHRUNK_MIN`.
const SHRUNK_SHARE: usize = 5;

/// What is known of one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WatchStatus {
    synced: bool,
    /// Why it is not, where it broke and somebody has said so.
    why: String,
    seen: Option<Timestamp>,
    doubted: bool,
}

/// All watches of a cluster.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth {
    kinds: BTreeMap<ObjectKind, WatchStatus>,
}

impl WatchHealth {
    /// A full listing came in. Returns whether it is to be doubted: it lacks `vanished` of the
    /// `known` objects that a synced watch had shown before, without a word about their deletion.
    pub fn listed(
        &mut self,
        kind: ObjectKind,
        known: usize,
        vanished: usize,
        now: Timestamp,
    ) -> bool {
        let view = self.kinds.entry(kind).or_default();
        let watched = view.seen.is_some();
        let shrunk = vanished >= SHRUNK_MIN && vanished * SHRUNK_SHARE > known;
        *view = WatchStatus {
            synced: true,
            why: String::new(),
            seen: Some(now),
            doubted: watched && shrunk,
        };
        view.doubted
    }

    /// The watch gave a sign of life.
    pub fn alive(&mut self, kind: ObjectKind, now: Timestamp) {
        let view = self.kinds.entry(kind).or_default();
        view.seen = view.seen.max(Some(now));
    }

    /// The watch broke, for this reason.
    pub fn lost(&mut self, kind: ObjectKind, why: String) {
        let view = self.kinds.entry(kind).or_default();
        (view.synced, view.why) = (false, why);
    }

    /// Single objects were asked for, and what the listing lacks is truly gone.
    pub fn believe(&mut self, kind: ObjectKind) {
        self.kinds.entry(kind).or_default().doubted = false;
    }

    /// The watch shows less than there is.
    pub fn doubt(&mut self, kind: ObjectKind) {
        self.kinds.entry(kind).or_default().doubted = true;
    }

    /// Whether the watch shows less than there is, or may.
    pub fn is_doubted(&self, kind: ObjectKind) -> bool {
        self.kinds.get(&kind).is_some_and(|own| own.doubted)
    }

    /// Whether the watch gave a sign of life within so long.
    pub fn is_recent(&self, kind: ObjectKind, now: Timestamp, within: SignedDuration) -> bool {
        let seen = self.kinds.get(&kind).and_then(|own| own.seen);
        seen.is_some_and(|at| now.duration_since(at) <= within)
    }

    /// When that watch of these kinds last gave a sign of life that has been silent for longest;
    /// none before any has.
    pub fn seen_least(&self, kinds: &[ObjectKind]) -> Option<Timestamp> {
        let seen = |kind: &ObjectKind| self.kinds.get(kind).and_then(|own| own.seen);
        kinds.iter().filter_map(seen).min()
    }

    /// Why nothing voluntary may be done now; none when every watch of these kinds is whole.
    ///
    /// A watch that gave no sign of life for longer than `age_max` is stale.
    pub fn fault(
        &self,
        kinds: &[ObjectKind],
        now: Timestamp,
        age_max: SignedDuration,
    ) -> Option<String> {
        kinds.iter().find_map(|kind| {
            let name = kind.plural();
            match self.kinds.get(kind) {
                Some(WatchStatus {
                    synced: false, why, ..
                }) if !why.is_empty() => Some(format!("{name} are not synced: {why}")),
                None | Some(WatchStatus { synced: false, .. }) => {
                    Some(format!("{name} are not synced"))
                }
                Some(WatchStatus { doubted: true, .. }) => {
                    Some(format!("the listing of {name} shrank"))
                }
                Some(WatchStatus { seen, .. }) => {
                    let age = now.duration_since(seen.unwrap_or(Timestamp::UNIX_EPOCH));
                    (age > age_max).then(|| format!("{name} gave no sign of life for {age:#}"))
                }
            }
        })
    }

    /// When the next watch that is not stale yet will be, unless it gives a sign of life.
    pub fn next_stale(&self, now: Timestamp, age_max: SignedDuration) -> Option<Timestamp> {
        // One millisecond on, the age is above its limit.
        let limit = age_max + SignedDuration::from_millis(1);
        let synced = self.kinds.values().filter(|view| view.synced);
        let stale = synced.filter_map(|view| view.seen?.checked_add(limit).ok());
        stale.filter(|at| *at > now).min()
    }
}
