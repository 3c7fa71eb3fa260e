//! State that clusters share: common limits, capacity reservations, and unavailable offerings.
//!
//! ```text
//! engine ─► RequestGrant, ReportUsage, ─► handle ─┬─► Granted, Denied ────────► the same engine
//!           MarkUnavailable                       └─► FleetChanged, HeldDown ─► other engines
//! ```
//!
//! Why: docs/decisions/010-what-clusters-share.md.

// One cluster of the fleet: its usage and source.
mod member;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::disruption::budgets::rate_allows_at;
use crate::engine::command::{Command, IssuedCommand};
use crate::engine::event::Event;
use crate::fleet::member::Member;
use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::Cluster;
use crate::model::fleet::{ClaimUsage, FleetLimits, FleetView, GrantRequest, OtherClusters};
use crate::model::id::{ClaimId, ClusterName};
use crate::model::instance::UnavailableKey;
use crate::model::pool::{Budget, Limits, Reason, applies_to_reason};
use crate::model::quantity::{Resources, display_amount};
use crate::provider::{CommandResult, FailureKind};

/// How long the other clusters wait for a managed cluster that has never reported its usage. An
/// engine reports once two listings of instances agree, which takes seconds. Five minutes are also
/// the default launch timeout.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Minimum interval of change notifications to clusters. A denied cluster is notified immediately.
const VIEWS_APART: SignedDuration = SignedDuration::from_secs(1);

/// The clusters of one configuration, and their usage of shared limits.
#[derive(Debug, Default)]
pub struct Fleet {
    limits: FleetLimits,
    members: BTreeMap<ClusterName, Member>,
    /// Unavailable offerings, by provider account.
    holds: BTreeMap<CapacityScope, BTreeMap<UnavailableKey, Timestamp>>,
    /// When clusters are next notified of changes, and when they were last notified.
    views_due: Option<Timestamp>,
    views_told: Option<Timestamp>,
    /// Number of views created so far. It is the version of the newest view.
    views: u64,
    events: VecDeque<(ClusterName, Event)>,
}

impl Fleet {
    /// Sets limits and clusters. Removed clusters are treated as if they had no nodes. New clusters
    /// must report their usage.
    pub fn configure(&mut self, limits: FleetLimits, clusters: &[Arc<Cluster>], now: Timestamp) {
        self.members.retain(|name, _| clusters.iter().any(|cluster| cluster.name == *name));
        self.limits = limits;
        for cluster in clusters {
            let name = cluster.name.clone();
            let member = self.members.entry(name).or_insert_with(|| Member::new(cluster));
            member.configure(cluster, now);
        }
        let members = &self.members;
        self.holds.retain(|market, _| members.values().any(|member| member.market == *market));
        self.notify_all(now);
    }

    /// Records that a new engine starts for a cluster. The engine gets no grants before it has
    /// reported its usage. Until then, the usage of the previous engine applies.
    pub fn on_engine_start(&mut self, cluster: &ClusterName, now: Timestamp) {
        if let Some(member) = self.members.get_mut(cluster) {
            (member.speaks, member.view) = (false, None);
            self.notify_all(now);
        }
    }

    /// Records that an event did not reach its cluster, so that it is sent again.
    pub fn on_event_missed(&mut self, cluster: &ClusterName, now: Timestamp) {
        if let Some(member) = self.members.get_mut(cluster) {
            member.view = None;
            self.schedule_notifications(now);
        }
    }

    /// Returns the view of a cluster, for an engine that starts.
    pub fn view_of(&self, cluster: &ClusterName, now: Timestamp) -> Option<Arc<FleetView>> {
        let view = self.members.get(cluster).and_then(|member| member.view.clone());
        view.or_else(|| self.view_for(cluster, now).map(Arc::new))
    }

    /// Processes a command of an engine. The result is queued as an event.
    pub fn handle_command(&mut self, cluster: &ClusterName, issued: IssuedCommand, now: Timestamp) {
        self.notify_due(now);
        let answer = match issued.command {
            Command::RequestGrant(request) => self.request_grant(cluster, *request, now),
            Command::RequestDisruption { claim, reason } => {
                self.request_disruption(cluster, claim, reason, now)
            }
            Command::ReportDisruptions(disruption_usage) => {
                if let Some(member) = self.members.get_mut(cluster) {
                    member.disruption_usage = Some(*disruption_usage);
                }
                self.schedule_notifications(now);
                CommandResult::Done
            }
            Command::ReportUsage { whole, claims } => {
                self.record_usage(cluster, whole, claims, now)
            }
            Command::MarkUnavailable { what, until } => {
                self.share_unavailable_offerings(cluster, &what, until, now);
                CommandResult::Done
            }
            other => CommandResult::Failed {
                kind: FailureKind::Invalid,
                text: format!("{} is not a fleet command", other.name()),
            },
        };
        let event = Event::Answered(issued.id, answer);
        self.events.push_back((cluster.clone(), event));
    }

    /// Returns the next event, and the cluster that receives it.
    pub fn next_event(&mut self) -> Option<(ClusterName, Event)> {
        self.events.pop_front()
    }

    /// Returns when [`Self::notify_due`] must be called.
    pub fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        let waited = self.members.values().filter_map(|member| member.awaited_until());
        let patience = waited.filter(|until| *until > now);
        patience.chain(self.views_due).min()
    }

    /// Notifies clusters of changes when due.
    pub fn notify_due(&mut self, now: Timestamp) {
        let mut until = self.members.values().filter_map(|member| member.awaited_until());
        let patient = self.views_told.unwrap_or(now);
        if until.any(|until| until <= now && until > patient) {
            self.schedule_notifications(now);
        }
        if self.views_due.is_some_and(|due| due <= now) {
            self.notify_all(now);
        }
    }

    /// Total capacity and nodes of a cluster.
    pub fn total_usage(&self, cluster: &ClusterName) -> (Resources, usize) {
        let member = self.members.get(cluster);
        member.map(|member| member.sum.clone()).unwrap_or_default()
    }

    fn request_grant(
        &mut self,
        cluster: &ClusterName,
        request: GrantRequest,
        now: Timestamp,
    ) -> CommandResult {
        let refusal = self.grant_denial(cluster, &request, now).map(|why| (why, false));
        let Some((why, used_up)) =
            refusal.or_else(|| Some((self.reservation_denial(cluster, &request)?, true)))
        else {
            if let Some(member) = self.members.get_mut(cluster) {
                member.set_grant(request.claim, Some(request.holding));
            }
            self.schedule_notifications(now);
            return CommandResult::Granted;
        };
        self.deny_request(cluster, why, used_up, now)
    }

    fn deny_request(
        &mut self,
        cluster: &ClusterName,
        why: String,
        used_up: bool,
        now: Timestamp,
    ) -> CommandResult {
        self.views += 1;
        let view = Arc::new(self.view_for(cluster, now).unwrap_or_default());
        if let Some(member) = self.members.get_mut(cluster) {
            member.view = Some(view.clone());
        }
        CommandResult::Denied { why, used_up, view }
    }

    /// Grants or denies the disruption of a node. Repeated requests for the same node are treated
    /// as one.
    fn request_disruption(
        &mut self,
        cluster: &ClusterName,
        claim: ClaimId,
        reason: Reason,
        now: Timestamp,
    ) -> CommandResult {
        if let Some(why) = self.disruption_denial(cluster, &claim, reason, now) {
            return self.deny_request(cluster, why, false, now);
        }
        let member = self.members.get_mut(cluster);
        if let Some(disruption_usage) = member.and_then(|member| member.disruption_usage.as_mut()) {
            disruption_usage.leaving.insert(claim.clone());
            disruption_usage.let_go.insert(claim, (now, reason));
        }
        self.schedule_notifications(now);
        CommandResult::Granted
    }

    /// Why the disruption of a node is denied.
    fn disruption_denial(
        &self,
        cluster: &ClusterName,
        claim: &ClaimId,
        reason: Reason,
        now: Timestamp,
    ) -> Option<String> {
        if self.members.get(cluster).is_none_or(|member| member.disruption_usage.is_none()) {
            return Some("the cluster has not reported its nodes yet".to_owned());
        }
        let unreported = self.members.iter().find(|(_, member)| {
            let awaited = member.report_awaited_until();
            awaited.is_some_and(|until| until > now)
        });
        if let Some((name, _)) = unreported {
            return Some(format!(
                "the budgets of the fleet are not known yet: cluster {name} has not reported its \
                 nodes"
            ));
        }
        let mut all = OtherClusters::default();
        for (name, member) in &self.members {
            let mut disruption_usage = member.disruption_usage.clone().unwrap_or_default();
            if name == cluster {
                disruption_usage.leaving.remove(claim);
                disruption_usage.let_go.remove(claim);
            }
            all.add_usage(&disruption_usage);
        }
        let mut budgets = self.limits.budgets.iter();
        budgets.find_map(|budget| budget_denial(budget, &all, reason, now))
    }

    /// Why a claim is denied.
    fn grant_denial(
        &self,
        cluster: &ClusterName,
        request: &GrantRequest,
        now: Timestamp,
    ) -> Option<String> {
        if !self.members.get(cluster).is_some_and(|member| member.speaks) {
            return Some("the cluster has not reported its resources yet".to_owned());
        }
        if let Some(closed) = self.closed_reason(now) {
            return Some(closed);
        }
        let (mut used, mut nodes) = (Resources::default(), 0_usize);
        for member in self.members.values() {
            let (capacity, count) = member.counted_usage();
            used.add(&capacity);
            nodes = nodes.saturating_add(count);
        }
        // A claim with an existing grant is counted only once.
        let before = self.members.get(cluster).and_then(|member| member.grant_of(&request.claim));
        if let Some(before) = before {
            used.subtract(&before.capacity);
            nodes -= 1;
        }
        let limits = &self.limits.limits;
        for (name, limit) in &limits.capacity {
            let (used, wanted) = (used.get(name), request.holding.capacity.get(name));
            if used.saturating_add(wanted) > *limit {
                let amounts = [*limit, limit.saturating_sub(used), wanted];
                let [limit, left, wanted] = amounts.map(|amount| display_amount(name, amount));
                return Some(format!(
                    "{name} limit {limit} of the fleet leaves {left}, the claim needs up to \
                     {wanted}"
                ));
            }
        }
        if let Some(limit) = limits.nodes.filter(|limit| nodes >= *limit as usize) {
            return Some(format!("nodes limit {limit} of the fleet is reached"));
        }
        None
    }

    /// Why the capacity reservation of a claim has no free instance. The instances of all clusters
    /// of the same account are counted.
    fn reservation_denial(&self, cluster: &ClusterName, request: &GrantRequest) -> Option<String> {
        let reservation = request.holding.reservation.as_ref()?;
        let id = reservation.id.as_str();
        let asker = self.members.get(cluster)?;
        let taken: usize = self
            .members
            .values()
            .filter(|member| member.market == asker.market)
            .map(|member| member.reserved_instances(id))
            .sum();
        let before = asker.grant_of(&request.claim);
        let previous = before.and_then(|grant| grant.reservation.as_ref());
        let taken = taken - usize::from(previous.is_some_and(|previous| previous.id == id));
        let count = reservation.count;
        (taken >= count as usize)
            .then(|| format!("all {count} instances of capacity reservation {id} are in use"))
    }

    /// Why all requests are denied now: the usage of a cluster is not known.
    fn closed_reason(&self, now: Timestamp) -> Option<String> {
        let (name, _) = self.members.iter().find(|(_, member)| {
            let awaited = member.awaited_until();
            awaited.is_some_and(|until| until > now)
        })?;
        Some(format!(
            "the limits of the fleet are not known yet: cluster {name} has not reported its \
             resources"
        ))
    }

    fn record_usage(
        &mut self,
        cluster: &ClusterName,
        whole: bool,
        claims: Vec<(ClaimId, Option<ClaimUsage>)>,
        now: Timestamp,
    ) -> CommandResult {
        // Changes are rejected until the engine has reported its full usage.
        let member = self.members.get_mut(cluster);
        let Some(member) = member.filter(|member| whole || member.speaks) else {
            return CommandResult::Failed {
                kind: FailureKind::Conflict,
                text: "the fleet does not know all claims".to_owned(),
            };
        };
        if whole {
            member.clear_usage();
        }
        for (claim, holding) in claims {
            member.set_grant(claim, holding);
        }
        let new = whole && !std::mem::replace(&mut member.speaks, true);
        let first = whole && !std::mem::replace(&mut member.known, true);
        let market = member.market.clone();
        if new {
            self.send_unavailable_offerings(cluster, &market, now);
        }
        if first {
            self.notify_all(now);
        } else {
            self.schedule_notifications(now);
        }
        CommandResult::Done
    }

    fn share_unavailable_offerings(
        &mut self,
        cluster: &ClusterName,
        offerings: &[UnavailableKey],
        until: Timestamp,
        now: Timestamp,
    ) {
        let Some(market) = self.members.get(cluster).map(|member| member.market.clone()) else {
            return;
        };
        let known = self.holds.entry(market.clone()).or_default();
        known.retain(|_, until| *until > now);
        for held in offerings {
            let known_until = known.entry(held.clone()).or_insert(until);
            *known_until = (*known_until).max(until);
        }
        for (name, member) in &self.members {
            if name != cluster && member.market == market {
                let event = Event::HeldDown(offerings.to_vec(), until);
                self.events.push_back((name.clone(), event));
            }
        }
    }

    /// Sends the known unavailable offerings to a new cluster.
    fn send_unavailable_offerings(
        &mut self,
        cluster: &ClusterName,
        market: &CapacityScope,
        now: Timestamp,
    ) {
        let mut by_end: BTreeMap<Timestamp, Vec<UnavailableKey>> = BTreeMap::new();
        let known = self.holds.get(market).into_iter().flatten();
        for (held, until) in known.filter(|(_, until)| **until > now) {
            by_end.entry(*until).or_default().push(held.clone());
        }
        for (until, offerings) in by_end {
            let event = Event::HeldDown(offerings, until);
            self.events.push_back((cluster.clone(), event));
        }
    }

    /// The view for a cluster. `None` if the cluster shares nothing with other clusters.
    fn view_for(&self, cluster: &ClusterName, now: Timestamp) -> Option<FleetView> {
        let member = self.members.get(cluster)?;
        let mut others = self.members.iter().filter(|(name, _)| *name != cluster);
        let limited = self.limits.limits != Limits::default();
        let counted = limited || !self.limits.budgets.is_empty();
        if !counted && !others.any(|(_, other)| other.market == member.market) {
            return None;
        }
        let others = self.members.iter().filter(|(name, _)| *name != cluster);
        let mut on_disruptions_reported = OtherClusters::default();
        let all = others.clone().filter_map(|(_, member)| member.disruption_usage.as_ref());
        all.for_each(|usage| on_disruptions_reported.add_usage(usage));
        let others: Vec<_> = others.map(|(_, other)| other.counted_usage()).collect();
        Some(FleetView {
            number: self.views,
            limits: self.limits.limits.clone(),
            share: self.limits.cluster_share(others.iter().map(|(used, nodes)| (&**used, *nodes))),
            closed: self.closed_reason(now),
            budgets: self.limits.budgets.clone(),
            others: on_disruptions_reported,
        })
    }

    fn schedule_notifications(&mut self, now: Timestamp) {
        let due =
            self.views_told.map_or(now, |at| at.checked_add(VIEWS_APART).unwrap_or(at)).max(now);
        self.views_due = Some(self.views_due.map_or(due, |planned| planned.min(due)));
    }

    /// Notifies every cluster of its changes.
    fn notify_all(&mut self, now: Timestamp) {
        (self.views_due, self.views_told) = (None, Some(now));
        self.views += 1;
        let names: Vec<ClusterName> = self.members.keys().cloned().collect();
        for name in names {
            let view = self.view_for(&name, now).map(Arc::new);
            let Some(member) = self.members.get_mut(&name) else {
                continue;
            };
            let is_known = match (&member.view, &view) {
                (Some(known), Some(view)) => known.has_same_content(view),
                (known, view) => known.is_none() && view.is_none(),
            };
            if !is_known {
                member.view.clone_from(&view);
                self.events.push_back((name, Event::FleetChanged(view)));
            }
        }
    }
}

/// Why a budget allows no further disruption. `None` if the budget allows one.
fn budget_denial(
    budget: &Budget,
    all: &OtherClusters,
    reason: Reason,
    now: Timestamp,
) -> Option<String> {
    let allowed = budget.allowed_nodes(reason, all.nodes, now)?;
    if all.disrupted >= allowed {
        return Some(format!(
            "the disruption budget of the fleet allows {allowed} node(s) at a time"
        ));
    }
    let rate = budget.rate?;
    let gone: Vec<Timestamp> = all
        .let_go
        .iter()
        .filter(|disruption| applies_to_reason(&budget.reasons, disruption.1))
        .map(|disruption| disruption.0)
        .collect();
    let until = rate_allows_at(rate, &gone, now)?;
    Some(format!("the disruption budget of the fleet is used up ({rate}), until {until}"))
}
