//! The batch window in which pending pods are collected before they are planned together.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::time_after;
use crate::model::cluster::Batching;
use crate::model::id::PodKey;

/// Unschedulable pods are planned again after this time, because capacity, pools or offerings may
/// have changed.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// The batch window.
#[derive(Clone, Debug, Default)]
pub struct PodBatcher {
    /// Pending pods. The value is the time at which a pod was first seen, or `None` once the pod
    /// was planned.
    known: BTreeMap<PodKey, Option<Timestamp>>,
    opened: Option<Timestamp>,
    last_new: Option<Timestamp>,
    last_round: Option<Timestamp>,
    /// When unschedulable pods are planned again, if this is earlier than after the usual interval.
    again: Option<Timestamp>,
    closes: Closes,
}

/// When an open batch window closes. The maximum duration of the window applies in all cases.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Closes {
    /// After the idle time without a new pod.
    #[default]
    WhenIdle,
    /// After the maximum duration: the scheduler has not tried all pods yet, so more pods may
    /// become pending.
    AtMax,
    /// After the idle time, counted from the opening: instances are being interrupted, and their
    /// replacements must be launched before their pods stop.
    Soon,
}

impl PodBatcher {
    /// Sets when an open window closes.
    pub fn set_closes(&mut self, closes: Closes) {
        self.closes = closes;
    }

    /// Records the pending pods. A new pod opens the window or keeps it open.
    pub fn observe_pending(&mut self, waiting: &[&PodKey], now: Timestamp) {
        let before = self.known.len();
        for key in waiting {
            if !self.known.contains_key(*key) {
                self.known.insert((*key).clone(), Some(now));
            }
        }
        if self.known.len() > before {
            self.opened.get_or_insert(now);
            self.last_new = Some(now);
        }
        if self.known.len() > waiting.len() {
            let waiting: HashSet<&PodKey> = waiting.iter().copied().collect();
            self.known.retain(|key, _| waiting.contains(key));
        }
        if waiting.is_empty() {
            self.opened = None;
        }
    }

    /// Returns when to plan the pending pods. `None` if there are none.
    pub fn next_plan_at(&self, batching: &Batching) -> Option<Timestamp> {
        if self.known.is_empty() {
            return None;
        }

        match (self.opened, self.last_new) {
            (Some(opened), Some(last)) => {
                let latest = time_after(opened, batching.max);
                Some(match self.closes {
                    Closes::AtMax => latest,
                    Closes::WhenIdle => latest.min(time_after(last, batching.idle)),
                    Closes::Soon => latest.min(time_after(opened, batching.idle)),
                })
            }
            _ => {
                let usual =
                    self.last_round.map_or(Timestamp::MIN, |round| time_after(round, AGAIN));
                Some(self.again.map_or(usual, |again| usual.min(again)))
            }
        }
    }

    /// Schedules the next plan of unschedulable pods for `at`, unless it is scheduled earlier.
    pub fn plan_again_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    /// Returns whether any pending pod has not been planned yet.
    pub fn has_unplanned_pods(&self) -> bool {
        self.known.values().any(Option::is_some)
    }

    /// Returns the pending pods that have not been planned yet, with the times at which they were
    /// first seen.
    pub fn unplanned_pods(&self) -> impl Iterator<Item = (&PodKey, Timestamp)> {
        self.known.iter().filter_map(|(pod, seen)| Some((pod, (*seen)?)))
    }

    /// Records that the pending pods were planned. Returns the waiting times of the pods that were
    /// planned for the first time.
    pub fn record_plan(&mut self, now: Timestamp) -> Vec<SignedDuration> {
        (self.opened, self.again) = (None, None);
        self.last_round = Some(now);
        let first = self.known.values_mut().filter_map(Option::take);
        first.map(|seen| now.duration_since(seen)).collect()
    }
}
