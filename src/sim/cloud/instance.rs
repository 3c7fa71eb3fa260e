//! One instance: what it is, and what listings show of it by when.
//! It must not know why its state changes.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::model::instance::{Instance, InstanceState};
use crate::model::labels::Labels;
use crate::model::taint::Taint;
use crate::sim::cloud::TERMINATED_VISIBLE;
use crate::sim::event_queue::later;

/// An instance with its past.
#[derive(Clone, Debug)]
pub struct SimInstance {
    instance: Instance,
    /// Labels its node registers with.
    pub labels: Labels,
    /// Taints its node registers with.
    pub taints: Vec<Taint>,
    /// When EC2 takes it back, once that is decided.
    pub reclaimed: Option<Timestamp>,
    /// When it stopped to cost money.
    pub ended: Option<Timestamp>,
    /// From when listings show which state; in order of time.
    shown: Vec<(Timestamp, InstanceState)>,
    vanishes: Option<Timestamp>,
}

impl SimInstance {
    /// A new instance that listings show from `seen` on.
    pub fn new(instance: Instance, labels: Labels, taints: Vec<Taint>, seen: Timestamp) -> Self {
        let shown = vec![(seen, instance.state)];
        Self {
            instance,
            labels,
            taints,
            reclaimed: None,
            ended: None,
            shown,
            vanishes: None,
        }
    }

    /// The instance as it really is.
    pub fn truth(&self) -> &Instance {
        &self.instance
    }

    /// The instance as a listing shows it, if it does.
    pub fn seen(&self, now: Timestamp) -> Option<Instance> {
        if self.vanishes.is_some_and(|at| at <= now) {
            return None;
        }
        let (_, state) = self.shown.iter().rev().find(|(at, _)| *at <= now)?;
        Some(Instance {
            state: *state,
            ..self.instance.clone()
        })
    }

    /// Turns to another state, which listings show from `seen` on.
    pub fn turn(&mut self, state: InstanceState, now: Timestamp, seen: Timestamp) {
        self.instance.state = state;
        if !state.is_live() {
            self.ended.get_or_insert(now);
        }
        if state == InstanceState::Terminated {
            self.vanishes = Some(later(now, TERMINATED_VISIBLE));
        }
        let seen = self.shown.last().map_or(seen, |(last, _)| seen.max(*last));
        self.shown.push((seen, state));
    }

    /// Puts tags on it.
    pub fn tag(&mut self, tags: &Labels) {
        let tags = tags.iter().map(|(key, value)| (key.clone(), value.clone()));
        Arc::make_mut(&mut self.instance.tags).extend(tags);
    }

    /// For how long it has cost money by `now`.
    pub fn billed(&self, now: Timestamp) -> SignedDuration {
        self.ended
            .unwrap_or(now)
            .min(now)
            .duration_since(self.instance.launched)
    }
}
