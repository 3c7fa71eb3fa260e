//! Injects each fault.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::engine::command::Command;
use crate::model::id::{InstanceId, NodeName};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::sim::cloud::CloudEvent;
use crate::sim::event_queue::time_after;
use crate::sim::faults::{Cut, ScheduledFault};
use crate::sim::scenario::ReclaimCount;
use crate::sim::timeline::TimelineFact;
use crate::sim::watches::Listing;
use crate::sim::{ScheduledEvent, World};

impl World {
    pub(super) fn inject_fault(&mut self, mishap: ScheduledFault) {
        match mishap {
            ScheduledFault::Restart { down } => {
                if self.engine().is_none() {
                    return;
                }
                self.tally.restarts += 1;
                self.stop_daemon();
                self.checker.on_stop(self.now, down);
                self.set_timer(down, ScheduledEvent::Start);
            }
            ScheduledFault::WatchLost { kind, lasts, cut } => {
                if self.engine().is_none() || !self.watches.is_up(kind) {
                    return;
                }
                self.note_fault(format!("the watch of {} breaks", kind.as_str()));
                self.watches.break_watch(kind, self.now);
                let due = ScheduledEvent::WatchBack(kind, cut, self.now);
                self.set_timer(lasts, due);
            }
            ScheduledFault::Stall { kind, lasts } => {
                self.note_fault(format!("the watch of {} stalls for {lasts:#}", kind.as_str()));
                self.watches.stall_watch(kind, time_after(self.now, lasts));
            }
            ScheduledFault::Reclaim => self.interrupt_spot(1),
            ScheduledFault::NodeDeleted { back } => self.delete_some_node(back),
            ScheduledFault::Failure => {
                let running = self.live_instances_of(|_| true);
                if let Some(instance) = self.picks.choice(running) {
                    self.note_fact(TimelineFact::Lost { instance: instance.clone() });
                    self.scene.cloud.fail(&instance, self.now);
                }
            }
        }
    }

    /// Deletes a managed Node. Its kubelet may register it again.
    fn delete_some_node(&mut self, back: Option<SignedDuration>) {
        let running = self.live_instances_of(|_| true);
        let Some(instance) = self.picks.choice(running) else {
            return;
        };
        let Some(node) = self.scene.cluster.node_of(instance.as_str()) else {
            return;
        };
        let (node, uid) = (node.name.clone(), node.uid.clone());
        self.note_fault(format!("someone deletes node {node}"));
        let delete = Command::DeleteNode { node, uid };
        self.scene.cluster.execute_command(&delete, self.now);
        if let Some(wait) = back {
            self.set_timer(wait, ScheduledEvent::Register(instance));
        }
    }

    /// The kubelet of a running instance registers its node again.
    pub(super) fn register_again(&mut self, id: &InstanceId) {
        if let Some(machine) = self.scene.cloud.get(id.as_str())
            && machine.is_live()
            && self.scene.cluster.node_of(id.as_str()).is_none()
        {
            self.on_cloud_event(CloudEvent::Booted {
                instance: machine.truth().clone(),
                labels: machine.labels.clone(),
                taints: machine.taints.clone(),
            });
        }
    }

    /// An external actor removes the taint of a disrupted node.
    pub(super) fn remove_taint(&mut self, node: &NodeName) {
        self.note_fault(format!("someone untaints {node}"));
        self.scene.cluster.remove_taint(node, self.now);
        self.checker.on_untainted(node, &self.scene);
    }

    /// A broken watch restarts with a listing.
    pub(super) fn restart_broken_watch(
        &mut self,
        kind: ObjectKind,
        cut: Option<Cut>,
        since: Timestamp,
    ) {
        if self.engine().is_none() || self.watches.is_up(kind) {
            return;
        }
        let wait = self.draw_lag(20, 300);
        let cut_off = cut.map(|cut| (cut, since));
        match cut_off {
            Some(cut) => self.cuts.insert(kind, cut),
            None => self.cuts.remove(&kind),
        };
        self.list_kind(kind, cut_off, wait);
        if let Some(cut) = cut {
            self.note_fault(format!("a listing of {} lacks objects ({cut:?})", kind.as_str()));
            // The watch breaks again later, and the next listing is complete.
            let lasts = self.draw_lag(20_000, 240_000);
            let due = ScheduledEvent::Happen(ScheduledFault::WatchLost {
                kind,
                lasts: self.draw_lag(500, 3000),
                cut: None,
            });
            self.set_timer(lasts, due);
        }
    }

    /// Interrupts up to `count` spot instances.
    pub(super) fn interrupt_spot(&mut self, count: u32) {
        for _ in 0..count {
            let spot =
                self.live_instances_of(|offering| offering.capacity_type == CapacityType::Spot);
            let Some(instance) = self.picks.choice(spot) else {
                return;
            };
            self.scene.cloud.interrupt(&instance, self.now);
        }
    }

    /// Interrupts spot instances one after another within a time.
    pub(super) fn schedule_interruptions(&mut self, wanted: ReclaimCount, within: SignedDuration) {
        let spot =
            self.live_instances_of(|offering| offering.capacity_type == CapacityType::Spot).len();
        let spot = u32::try_from(spot).unwrap_or(u32::MAX);
        let count = match wanted {
            ReclaimCount::Count(count) => count.min(spot),
            ReclaimCount::Share(share) => spot.saturating_mul(share).div_ceil(100),
        };
        for index in 0..count {
            let wait = within * i32::try_from(index).unwrap_or(i32::MAX);
            let wait = wait / i32::try_from(count).unwrap_or(i32::MAX);
            self.set_timer(wait, ScheduledEvent::Interrupted);
        }
    }

    /// All instances in a zone fail at the same time.
    pub(super) fn fail_zone(&mut self, index: usize) {
        let scenario = std::sync::Arc::clone(&self.setup.scenario);
        let Some(outage) = scenario.outages.get(index) else {
            return;
        };
        self.note_fault(format!("zone {} is lost", outage.zone));
        let lost: Vec<InstanceId> = self
            .scene
            .live_instances()
            .map(|machine| machine.truth())
            .filter(|instance| instance.offering.zone.as_str() == outage.zone)
            .map(|instance| instance.id.clone())
            .collect();
        for instance in lost {
            self.scene.cloud.fail(&instance, self.now);
        }
    }

    /// Live managed instances of some offerings that have no interruption notice, by ID.
    fn live_instances_of(&self, wanted: impl Fn(&OfferingKey) -> bool) -> Vec<InstanceId> {
        self.scene
            .live_instances()
            .filter(|machine| machine.reclaimed.is_none())
            .map(|machine| machine.truth())
            .filter(|instance| wanted(&instance.offering))
            .map(|instance| instance.id.clone())
            .collect()
    }

    /// Starts or ends a shortage of the scenario.
    pub(super) fn apply_shortage(&mut self, index: usize, begins: bool) {
        let scenario = std::sync::Arc::clone(&self.setup.scenario);
        let Some(shortage) = scenario.shortages.get(index) else {
            return;
        };
        let left = begins.then_some(shortage.left);
        let keys: Vec<OfferingKey> =
            self.all_offerings().into_iter().filter(|key| shortage.covers_offering(key)).collect();
        let which = [
            shortage.instance_type.as_deref(),
            shortage.zone.as_deref(),
            shortage.capacity_type.map(CapacityType::as_str),
        ];
        let which = which.into_iter().flatten().collect::<Vec<_>>().join(" ");
        self.note_fact(TimelineFact::Stock { offerings: keys.len(), which, left });
        for key in keys {
            self.scene.cloud.set_capacity(key, left);
        }
    }

    /// Returns every offering of the catalog.
    fn all_offerings(&self) -> Vec<OfferingKey> {
        let types = self.scene.catalog.types();
        types
            .flat_map(|shape| shape.offerings.iter().map(|offering| offering.key(&shape.name)))
            .collect()
    }

    /// Restores offerings that a fault made unavailable, unless the scenario has a shortage of
    /// them.
    pub(super) fn restore_offerings(&mut self, keys: Vec<OfferingKey>) {
        let scenario = std::sync::Arc::clone(&self.setup.scenario);
        for key in keys {
            let short = scenario.shortages.iter().find(|shortage| {
                shortage.covers_offering(&key)
                    && shortage.from <= self.now
                    && shortage.until.is_none_or(|until| self.now < until)
            });
            self.scene.cloud.set_capacity(key, short.map(|shortage| shortage.left));
        }
    }
}

/// Removes objects from a listing. Only objects shown before the watch broke at `since` can be
/// removed. A severe cut is made only if these objects are a large part of all objects, because the
/// daemon cannot detect a smaller cut.
pub(super) fn cut_off(
    objects: &mut Vec<WatchedObject>,
    cut: Cut,
    since: Timestamp,
    picks: &mut Rng,
) -> Listing {
    /// Minimum number of missing objects at which the daemon must detect the cut.
    const FEWEST: usize = 4;
    let mut order: Vec<usize> = (0..objects.len())
        .filter(|index| {
            let created = match &objects[*index] {
                WatchedObject::Pod(pod) => pod.created,
                WatchedObject::Node(node) => node.created,
                _ => None,
            };
            created
                .is_some_and(|created| time_after(created, crate::sim::watches::SILENT_MAX) < since)
        })
        .collect();
    let old_count = order.len();
    let lacking = match cut {
        Cut::Mild => old_count / 12,
        Cut::Severe => (old_count * picks.usize(50..=90)).div_ceil(100),
    };
    let is_much = old_count * 5 > objects.len() * 2;
    if cut == Cut::Severe && (lacking < FEWEST || !is_much) {
        return Listing::Whole;
    }
    picks.shuffle(&mut order);
    order.truncate(lacking);
    order.sort_unstable();
    for index in order.into_iter().rev() {
        objects.remove(index);
    }
    if cut == Cut::Severe { Listing::Cut } else { Listing::Whole }
}
