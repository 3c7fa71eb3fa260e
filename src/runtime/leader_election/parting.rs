//! When a leader gives its Lease up, and why.

use std::time::Duration;

use super::{ElectionTask, FIT, RETURNS, Role, WAITS, YIELDS, requesting_host};
use crate::coordination::leader_election::{PartingReason, RETRY, host_of};
use crate::host::clock;
use crate::kubernetes::lease::LeaseState;

impl ElectionTask {
    /// Waits although the Lease is free, because this host may acquire it only if it leads the
    /// first cluster of the group.
    pub(super) fn wait_for_group(&mut self) -> Duration {
        let since = *self.waits.get_or_insert_with(clock::monotonic_now);
        if since.elapsed() < WAITS {
            self.become_follower("waiting to lead it together with the clusters that share limits");
        } else {
            let why = "no leader: the leader of the clusters that share limits has not acquired it";
            self.report_failure(why.to_owned());
        }
        RETRY
    }

    /// Returns whether another host has requested the cluster since the last renewal, and the
    /// balancer agrees.
    pub(super) fn accepts_handover(&mut self, request: Option<String>) -> bool {
        let before = self.heard.replace(request.clone());
        let news = before.is_some_and(|before| before != request);
        let host = request.as_deref().map(requesting_host);
        news && host.is_some_and(|host| self.company.hands_over_to(host))
    }

    /// Returns whether this host had requested the cluster, but the engine of the cluster makes no
    /// decisions.
    pub(super) fn is_unfit(&mut self) -> bool {
        let Some(since) = self.handover else {
            return false;
        };
        let is_unfit = self.company.is_unhealthy_for(&self.cluster, FIT);
        // The engine made decisions during part of this time.
        if !is_unfit && !matches!(self.role, Role::Parting { .. }) && since.elapsed() > 2 * FIT {
            self.handover = None;
            self.company.on_handover_ready(since);
        }
        is_unfit
    }

    /// Returns why this host hands the cluster over now, if no commands of the cluster are in
    /// flight. While commands are in flight, this host renews the Lease so that they complete.
    pub(super) fn due_parting_reason(&self) -> Option<PartingReason> {
        match self.role {
            Role::Parting { why, .. } => self.has_ended().then_some(why),
            Role::Follower | Role::Leader { .. } => None,
        }
    }

    /// Returns whether this host is the leader and the engine of this term has stopped.
    pub(super) fn has_ended(&self) -> bool {
        self.role.until().is_some() && *self.rested.borrow() >= self.term
    }

    /// Returns why this host leaves a free Lease to another host: the Lease was released for that
    /// host, or the engine of this host made no decisions.
    pub(super) fn yield_reason(&mut self, lease: &LeaseState) -> Option<PartingReason> {
        if self.returned.is_some_and(|since| since.elapsed() < RETURNS) {
            return Some(PartingReason::Unfit);
        }
        let request = lease.asked.as_deref().filter(|_| lease.hold.holder.is_empty());
        let host = request.map(requesting_host);
        if host.is_none_or(|host| host == host_of(&self.me)) {
            self.free = None;
            return None;
        }
        let since = self.free.get_or_insert_with(clock::monotonic_now);
        (since.elapsed() < YIELDS).then_some(PartingReason::Asked)
    }
}
