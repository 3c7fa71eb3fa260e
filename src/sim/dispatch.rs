//! Routes events: from the engine to the timeline, and from cluster and cloud to the engine. It
//! makes no decisions.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::engine::event::Event;
use crate::engine::report::Report;
use crate::provider::Interruption;
use crate::sim::cloud::CloudEvent;
use crate::sim::cluster::kubelet::Boot;
use crate::sim::event_queue::time_after;
use crate::sim::timeline::TimelineFact;
use crate::sim::{ScheduledEvent, World};
use crate::state::cluster_identity::Mismatch;

/// Time after which a user approves held actions.
const ACCEPTED_AFTER: SignedDuration = SignedDuration::from_mins(30);

impl World {
    pub(super) fn record_report(&mut self, report: Report) {
        match report {
            Report::ClaimPlanned { claim, pool, offering, price, pods, .. } => {
                self.note_fact(TimelineFact::Planned {
                    claim,
                    pool,
                    offering,
                    price,
                    pods: pods.len(),
                });
            }
            Report::Retire { claim, node, reason, price, .. } => {
                let node = node.map_or(claim.0, |node| node.0);
                self.note_fact(TimelineFact::Leaving { node, reason: reason.as_str(), price });
            }
            Report::Unplaced(unplaced) => {
                let why = unplaced
                    .reasons
                    .first()
                    .map_or(String::new(), crate::scheduling::PoolRejection::rejection_text);
                self.note_fact(TimelineFact::Unplaced { pod: unplaced.pod.to_string(), why });
            }
            Report::EndsHeld(held) => {
                self.note_fact(TimelineFact::Held {
                    instances: held.claims.len(),
                    total: held.total,
                });
                self.set_timer(ACCEPTED_AFTER, ScheduledEvent::Accept);
            }
            Report::Mismatch(Mismatch::NoNodes { .. }) => {
                self.set_timer(ACCEPTED_AFTER, ScheduledEvent::Accept);
            }
            Report::Frozen(why) => self.note_fact(TimelineFact::Frozen(why)),
            Report::Thawed => self.note_fact(TimelineFact::Thawed),
            _ => {}
        }
    }

    /// A user approves the held terminations.
    pub(super) fn approve_held(&mut self) {
        let Some(engine) = &self.engine else { return };
        let id = match (engine.mismatch(), engine.held_terminations()) {
            (Some(Mismatch::NoNodes { id, .. }), _) => id.clone(),
            (Some(_), _) => {
                // The user checks again after that time.
                self.set_timer(ACCEPTED_AFTER, ScheduledEvent::Accept);
                return;
            }
            (None, Some(held)) => held.id.clone(),
            (None, None) => return,
        };
        self.scene.cluster.approve_held(&id);
        self.note_fact(TimelineFact::Accepted(id));
    }

    /// Routes changes in the cluster to the watches and the timeline.
    pub(super) fn route_changes(&mut self) {
        for fact in std::mem::take(&mut self.scene.cluster.facts) {
            self.note_fact(fact);
        }
        for event in self.scene.cluster.store_mut().take_changes() {
            let kind = match &event {
                Event::Applied(object) => object.kind(),
                Event::Deleted(kind, _) => *kind,
                _ => continue,
            };
            let due = time_after(self.now, self.draw_lag(1, 25));
            self.watches.send_change(kind, event, due);
        }
    }

    pub(super) fn on_cloud_event(&mut self, event: CloudEvent) {
        match event {
            CloudEvent::Booted { instance, labels, taints } => {
                let Some(startup_taints) = self.startup_taints(&instance) else {
                    return;
                };
                if self.faults.draw_mute(self.now) {
                    self.note_fault(format!("{} never registers", instance.id));
                    return;
                }
                let gets_ready = !self.faults.draw_unready(self.now);
                if !gets_ready {
                    self.note_fault(format!("the node of {} stays unready", instance.id));
                }
                let catalog = Arc::clone(&self.scene.catalog);
                let Some(shape) = catalog.get(instance.offering.instance_type.as_str()) else {
                    return;
                };
                let boot = Boot {
                    instance: &instance,
                    shape,
                    labels: &labels,
                    taints: &taints,
                    startup_taints: &startup_taints,
                    gets_ready,
                };
                self.scene.cluster.register(&boot, self.now);
            }
            CloudEvent::Interrupted { instance, at } => {
                self.tally.interruptions += 1;
                self.note_fact(TimelineFact::Interrupted { instance: instance.clone(), at });
                // EventBridge and the queue have a delay.
                let wait = self.draw_lag(500, 5000);
                let event = Box::new(Event::interrupted(instance, Interruption::Spot, at));
                // SQS delivers at least once.
                self.set_timer(wait + wait, ScheduledEvent::Tell(event.clone(), at));
                self.set_timer(wait, ScheduledEvent::Tell(event, at));
            }
            CloudEvent::Ended { instance } => self.on_machine_ended(&instance),
        }
    }
}
