//! An instance: its actual state, and the state in listings over time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::model::instance::{Instance, InstanceState};
use crate::model::labels::Labels;
use crate::model::taint::Taint;
use crate::sim::cloud::TERMINATED_VISIBLE;
use crate::sim::event_queue::time_after;

/// An instance with its history.
#[derive(Clone, Debug)]
pub struct SimInstance {
    instance: Instance,
    /// Labels its node registers with.
    pub labels: Labels,
    /// Taints its node registers with.
    pub taints: Vec<Taint>,
    /// Time at which the instance will be interrupted, if that was decided.
    pub reclaimed: Option<Timestamp>,
    /// Time from which the instance has no cost.
    pub ended: Option<Timestamp>,
    /// States in listings, each with its start time, in order.
    shown: Vec<(Timestamp, InstanceState)>,
    vanishes: Option<Timestamp>,
}

impl SimInstance {
    /// Creates an instance that is listed from `seen` on.
    pub fn new(instance: Instance, labels: Labels, taints: Vec<Taint>, seen: Timestamp) -> Self {
        let shown = vec![(seen, instance.state)];
        Self { instance, labels, taints, reclaimed: None, ended: None, shown, vanishes: None }
    }

    /// The actual state of the instance.
    pub fn truth(&self) -> &Instance {
        &self.instance
    }

    /// Returns true if the instance incurs cost.
    pub fn is_live(&self) -> bool {
        self.instance.state.is_live()
    }

    /// The instance as it is listed. `None` if it is not listed.
    pub fn listed_at(&self, now: Timestamp) -> Option<Instance> {
        if self.vanishes.is_some_and(|at| at <= now) {
            return None;
        }
        let (_, state) = self.shown.iter().rev().find(|(at, _)| *at <= now)?;
        Some(Instance { state: *state, ..self.instance.clone() })
    }

    /// Changes the state. Listings show the new state from `seen` on.
    pub fn change_state(&mut self, state: InstanceState, now: Timestamp, seen: Timestamp) {
        self.instance.state = state;
        if !state.is_live() {
            self.ended.get_or_insert(now);
        }
        if state == InstanceState::Terminated {
            self.vanishes = Some(time_after(now, TERMINATED_VISIBLE));
        }
        let seen = self.shown.last().map_or(seen, |(last, _)| seen.max(*last));
        self.shown.push((seen, state));
    }

    /// Adds tags.
    pub fn add_tags(&mut self, tags: &Labels) {
        let tags = tags.iter().map(|(key, value)| (key.clone(), value.clone()));
        Arc::make_mut(&mut self.instance.tags).extend(tags);
    }

    /// Billed time up to `now`.
    pub fn billed_time(&self, now: Timestamp) -> SignedDuration {
        self.ended.unwrap_or(now).min(now).duration_since(self.instance.launched)
    }
}
