//! Tracks whether the watches of a cluster are synced, recent and complete.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::watched_object::ObjectKind;

/// A relist that lacks at least this many known objects, and more than one in `SHRUNK_SHARE`, is
/// considered incomplete. See docs/decisions/003-out-of-sync-suspends-decisions.md.
const SHRUNK_MIN: usize = 3;
/// See `SHRUNK_MIN`.
const SHRUNK_SHARE: usize = 5;

/// The health of one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WatchStatus {
    synced: bool,
    /// The error of a failed watch, if known.
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
    /// Records a full listing. Returns whether the listing is considered incomplete: it lacks
    /// `vanished` of the `known` objects of a synced watch, without deletion events.
    pub fn record_listing(
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

    /// Records activity of the watch.
    pub fn record_activity(&mut self, kind: ObjectKind, now: Timestamp) {
        let view = self.kinds.entry(kind).or_default();
        view.seen = view.seen.max(Some(now));
    }

    /// Records that the watch failed with this error.
    pub fn record_failure(&mut self, kind: ObjectKind, why: String) {
        let view = self.kinds.entry(kind).or_default();
        (view.synced, view.why) = (false, why);
    }

    /// Records that the missing objects were confirmed as deleted by individual requests.
    pub fn mark_complete(&mut self, kind: ObjectKind) {
        self.kinds.entry(kind).or_default().doubted = false;
    }

    /// Marks the watch as incomplete.
    pub fn mark_incomplete(&mut self, kind: ObjectKind) {
        self.kinds.entry(kind).or_default().doubted = true;
    }

    /// Returns whether the watch is, or may be, incomplete.
    pub fn is_incomplete(&self, kind: ObjectKind) -> bool {
        self.kinds.get(&kind).is_some_and(|status| status.doubted)
    }

    /// Returns whether the watch was active within this time.
    pub fn is_recent(&self, kind: ObjectKind, now: Timestamp, within: SignedDuration) -> bool {
        let seen = self.kinds.get(&kind).and_then(|status| status.seen);
        seen.is_some_and(|at| now.duration_since(at) <= within)
    }

    /// Returns the last activity of the watch that has been silent longest, or `None` before any
    /// activity.
    pub fn oldest_activity(&self, kinds: &[ObjectKind]) -> Option<Timestamp> {
        kinds.iter().filter_map(|kind| self.kinds.get(kind).and_then(|status| status.seen)).min()
    }

    /// Returns why voluntary disruption is suspended, or `None` if all watches of these kinds are
    /// complete.
    ///
    /// A watch without activity for longer than `age_max` is stale.
    pub fn sync_fault(
        &self,
        kinds: &[ObjectKind],
        now: Timestamp,
        age_max: SignedDuration,
    ) -> Option<String> {
        kinds.iter().find_map(|kind| {
            let name = kind.as_str();
            match self.kinds.get(kind) {
                Some(WatchStatus { synced: false, why, .. }) if !why.is_empty() => {
                    Some(format!("{name} are not synced: {why}"))
                }
                None | Some(WatchStatus { synced: false, .. }) => {
                    Some(format!("{name} are not synced"))
                }
                Some(WatchStatus { doubted: true, .. }) => {
                    Some(format!("the last listing of {name} lacks many known objects"))
                }
                Some(WatchStatus { seen, .. }) => {
                    let age = now.duration_since(seen.unwrap_or(Timestamp::UNIX_EPOCH));
                    (age > age_max).then(|| format!("the watch of {name} is silent for {age:#}"))
                }
            }
        })
    }

    /// Returns when the next watch becomes stale without activity.
    pub fn next_stale(&self, now: Timestamp, age_max: SignedDuration) -> Option<Timestamp> {
        // One millisecond later, the age exceeds its limit.
        let limit = age_max + SignedDuration::from_millis(1);
        let synced = self.kinds.values().filter(|view| view.synced);
        let stale = synced.filter_map(|view| view.seen?.checked_add(limit).ok());
        stale.filter(|at| *at > now).min()
    }
}
