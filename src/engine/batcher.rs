//! The window in which pending pods are collected, so that many are planned at once.
//! It must not know how they are planned.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::cluster::Batching;
use crate::model::id::PodKey;

/// Pods without an answer are planned again this often: capacity, pools or stock may be others.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// An open or closed window.
#[derive(Clone, Debug, Default)]
pub struct PodBatcher {
    /// Pods that wait, with when they were first seen until they are planned.
    known: BTreeMap<PodKey, Option<Timestamp>>,
    opened: Option<Timestamp>,
    last_new: Option<Timestamp>,
    last_round: Option<Timestamp>,
    /// When those without an answer may have one, sooner than usual.
    again: Option<Timestamp>,
    closes: Closes,
}

/// When an open window closes, at its maximum at the latest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Closes {
    /// Once no new pod came for the idle time.
    #[default]
    WhenIdle,
    /// At its maximum: the scheduler has yet to look at pods, so more may wait in a moment.
    AtMax,
    /// When it has been open for the idle time: instances are being taken back, and what replaces
    /// them must be launched before their pods stop.
    Soon,
}

impl PodBatcher {
    /// Sets when an open window closes.
    pub fn set_closes(&mut self, closes: Closes) {
        self.closes = closes;
    }

    /// Takes note of the pods that wait now; one not seen before opens the window or keeps it open.
    pub fn observe(&mut self, waiting: &[&PodKey], now: Timestamp) {
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

    /// When the pods that wait shall be planned; none while none wait.
    pub fn due(&self, batching: &Batching) -> Option<Timestamp> {
        if self.known.is_empty() {
            return None;
        }
        let after = |at: Timestamp, wait| at.checked_add(wait).unwrap_or(Timestamp::MAX);
        match (self.opened, self.last_new) {
            (Some(opened), Some(last)) => {
                let latest = after(opened, batching.max);
                Some(match self.closes {
                    Closes::AtMax => latest,
                    Closes::WhenIdle => latest.min(after(last, batching.idle)),
                    Closes::Soon => latest.min(after(opened, batching.idle)),
                })
            }
            _ => {
                let usual = self
                    .last_round
                    .map_or(Timestamp::MIN, |round| after(round, AGAIN));
                Some(self.again.map_or(usual, |again| usual.min(again)))
            }
        }
    }

    /// Pods without an answer are planned again at a time, if not sooner.
    pub fn try_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |own| own.min(at)));
    }

    /// Whether any pod waits that has not been planned yet.
    pub fn has_new(&self) -> bool {
        self.known.values().any(Option::is_some)
    }

    /// The pods that waited have been planned. Says how long those had waited for whom it was the
    /// first time.
    pub fn planned(&mut self, now: Timestamp) -> Vec<SignedDuration> {
        (self.opened, self.again) = (None, None);
        self.last_round = Some(now);
        let first = self.known.values_mut().filter_map(Option::take);
        first.map(|seen| now.duration_since(seen)).collect()
    }
}
