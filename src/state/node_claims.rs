//! NodeClaims, joined with their instances and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::model::claim::{ADOPTED, ClaimPhase, ClaimRecord, NotAClaim, TAG_CLAIM, TAG_FLEET};
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, PoolName, ReservationId};
use crate::model::instance::{CapacityType, ExpectedNode, Instance, InstanceState, OfferingKey};
use crate::model::labels::Labels;
use crate::model::pool::Reason;
use crate::model::reservation::Reservation;

/// Listed instances by ID, and whether each is live.
type ListedInstances = Arc<[(InstanceId, bool)]>;

/// An instance is never older than its claim by more than this. The clocks of the planning host and
/// EC2 may differ.
const OLDER_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Returns whether an instance is too old to be launched for a claim.
fn is_older(instance: &Instance, record: &ClaimRecord) -> bool {
    record.created.duration_since(instance.launched) > OLDER_MAX
}

/// Returns whether a sorted listing contains an instance.
fn is_listed(listed: &ListedInstances, id: &InstanceId) -> bool {
    listed.binary_search_by(|(other, _)| other.cmp(id)).is_ok()
}

/// Orders the instances of one claim. The first is the original: it has a tag with its EC2 fleet,
/// or is older.
fn originality_rank(instance: &Instance) -> (bool, Timestamp, &InstanceId) {
    let names_fleet = instance.tags.contains_key(TAG_FLEET);
    (!names_fleet, instance.launched, &instance.id)
}

/// A planned or existing node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClaim {
    /// The record in the tags of the instance.
    pub record: ClaimRecord,
    /// Its phase.
    pub phase: ClaimPhase,
    /// When the phase was first observed.
    pub since: Timestamp,
    /// Its offerings, cheapest first. Empty once an instance exists.
    pub offerings: Vec<OfferingKey>,
    /// Labels of its node in addition to those of its pool and type.
    pub labels: Labels,
    /// Its instance.
    pub instance: Option<Instance>,
    /// Its Node.
    pub node: Option<NodeName>,
    /// Resources that its launch template provides, once requested. `None` if unknown.
    pub devices: Option<BTreeSet<String>>,
    /// Pending pods for which the claim is planned. They are expected on its node for some time.
    pub pods: BTreeSet<PodKey>,
    /// Why the claim is disrupted.
    pub leaving: Option<Reason>,
    /// When its replacement started, before it is disrupted.
    pub replaced_since: Option<Timestamp>,
    /// End of the back-off after a cancelled disruption, and the number of cancellations.
    pub withdrawn: Option<(Timestamp, u32)>,
    /// Until when its node may still be tainted by a request that was sent before its disruption
    /// was cancelled.
    pub closing_until: Option<Timestamp>,
    /// Whether a different tool launched its node. Such a claim only counts as a node of its pool,
    /// and no listing contains its instance.
    pub foreign: bool,
    /// Whether two listings in succession show its instance as stopping or stopped.
    pub is_stopped: bool,
    /// When its instance was first missing from a listing.
    missing_since: Option<Timestamp>,
    /// Whether a sufficiently later listing lacks its instance, too.
    missing_confirmed: bool,
}

impl NodeClaim {
    /// A claim in this phase, with nothing else known.
    pub fn new(record: ClaimRecord, phase: ClaimPhase, now: Timestamp) -> Self {
        Self {
            record,
            phase,
            since: now,
            offerings: Vec::new(),
            labels: Labels::new(),
            instance: None,
            node: None,
            devices: None,
            pods: BTreeSet::new(),
            leaving: None,
            replaced_since: None,
            withdrawn: None,
            closing_until: None,
            foreign: false,
            is_stopped: false,
            missing_since: None,
            missing_confirmed: false,
        }
    }

    /// Returns whether the claim is disrupted because it is beyond its maximum age. This reason
    /// overrides all blockers.
    pub fn must_be_disrupted(&self, now: Timestamp) -> bool {
        self.leaving == Some(Reason::Expired) && self.record.is_overdue(now)
    }

    /// Returns whether the instance of the claim is terminated, or missing from two listings at a
    /// sufficient interval.
    pub fn instance_is_gone(&self) -> bool {
        let state = self.instance.as_ref().map(|instance| instance.state);
        self.missing_confirmed || state == Some(InstanceState::Terminated)
    }

    /// Returns whether the node of the claim has registered and is not being disrupted.
    pub fn has_joined(&self) -> bool {
        matches!(self.phase, ClaimPhase::Registered | ClaimPhase::Initialized)
    }

    /// Returns the instance of the claim, if it runs according to listings and call results.
    pub fn live_instance(&self) -> Option<&Instance> {
        self.instance.as_ref().filter(|instance| instance.state.is_live())
    }

    /// Returns the Node that its instance is expected to register.
    pub fn expected_node(&self) -> Option<&ExpectedNode> {
        self.instance.as_ref()?.node.as_deref()
    }

    /// Returns the capacity type of its instance.
    pub fn capacity_type(&self) -> Option<CapacityType> {
        self.instance.as_ref().map(|instance| instance.offering.capacity_type)
    }

    /// Returns the reservation that the claim uses. Before it has an instance, this is the
    /// reservation of its offerings, which all have the same one or none.
    pub fn reservation_id(&self) -> Option<&ReservationId> {
        let launched = self.instance.as_ref().map(|instance| &instance.offering);
        let offering = launched.or_else(|| self.offerings.first())?;
        offering.reservation.as_deref()
    }

    /// Returns whether the provider has not subtracted the claim from its reservation yet. Such a
    /// claim is about to be launched, or was launched at or after the time of the count.
    fn is_missing_from_reservation(&self, counted: Option<Timestamp>) -> bool {
        let Some(instance) = &self.instance else {
            return true;
        };
        instance.state != InstanceState::Terminated
            && counted.is_none_or(|at| may_be_unlisted(instance, at))
    }

    /// Returns whether pods may be planned for it.
    pub fn takes_pods(&self) -> bool {
        self.leaving.is_none()
            && self.replaced_since.is_none()
            && matches!(
                self.phase,
                ClaimPhase::Planned
                    | ClaimPhase::Launching
                    | ClaimPhase::Launched
                    | ClaimPhase::Registered
                    | ClaimPhase::Initialized
            )
    }
}

/// A new instance may be missing from listings for this long, because EC2 is eventually consistent.
const LISTING_LAG: SignedDuration = SignedDuration::from_secs(60);

/// Returns whether the provider may not have known an instance yet at a time.
pub fn may_be_unlisted(instance: &Instance, at: Timestamp) -> bool {
    at.duration_since(instance.launched) < LISTING_LAG
}

/// An instance of a batch belongs to no launch in flight if it is older than this. The provider
/// looks up the instances of a lost response for less time.
const RESPONSE_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Two listings are considered independent if there is at least this time between them.
pub const LISTING_APART: SignedDuration = SignedDuration::from_secs(5);

/// A listing that lacks more than one in this many known instances is not trusted. See
/// docs/decisions/003-out-of-sync-suspends-decisions.md.
const MISSING_SHARE_MAX: usize = 5;

/// The result of an instance listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingResult {
    /// Instances with Outrigger's tags that cannot be claims, and why.
    pub foreign_instances: Vec<(InstanceId, String)>,
    /// Claims discovered by the listing.
    pub found: Vec<ClaimId>,
    /// Whether the listing is considered partial because many instances are missing.
    pub partial: bool,
    /// Whether the listing contained changes.
    pub news: bool,
}

/// All claims of one cluster.
#[derive(Clone, Debug, Default)]
pub struct NodeClaims {
    /// Claims by id.
    pub claims: BTreeMap<ClaimId, NodeClaim>,
    by_instance: BTreeMap<InstanceId, ClaimId>,
    last_listing: Option<(Timestamp, ListedInstances)>,
    agreed: bool,
    doubted: Option<(Timestamp, Vec<ClaimId>)>,
    foreign_instances: BTreeSet<InstanceId>,
    ended: BTreeSet<InstanceId>,
    /// Whether some instance names the fleet that launched it. With a provider that names no
    /// fleets, all instances would look like copies.
    names_fleets: bool,
}

impl NodeClaims {
    /// Returns the pool of a claim, or the empty name if the claim does not exist.
    pub fn pool_of(&self, claim: &ClaimId) -> PoolName {
        let claim = self.claims.get(claim);
        claim.map_or(PoolName::default(), |claim| claim.record.pool.clone())
    }

    /// Returns the claim to which an instance belongs.
    pub fn by_instance(&self, instance: &str) -> Option<&ClaimId> {
        self.by_instance.get(instance)
    }

    /// Returns whether the last listing contains this instance as terminated.
    pub fn has_ended(&self, instance: &str) -> bool {
        self.ended.contains(instance)
    }

    /// Returns whether the last listing contains this instance as live, with or without a claim.
    pub fn is_listed_live(&self, instance: &str) -> bool {
        self.last_listing
            .iter()
            .flat_map(|(_, instances)| &instances[..])
            .any(|(id, live)| *live && id.as_str() == instance)
    }

    /// Returns whether two listings at least `LISTING_APART` apart agree since startup.
    pub fn is_settled(&self) -> bool {
        self.agreed
    }

    /// When instances were last listed.
    pub fn listed_at(&self) -> Option<Timestamp> {
        self.last_listing.as_ref().map(|(at, _)| *at)
    }

    /// Adds a claim.
    pub fn insert(&mut self, claim: NodeClaim) {
        if let Some(instance) = &claim.instance {
            self.by_instance.insert(instance.id.clone(), claim.record.id.clone());
        }
        self.claims.insert(claim.record.id.clone(), claim);
    }

    /// Removes a claim.
    pub fn remove(&mut self, id: &ClaimId) {
        self.claims.remove(id);
        self.by_instance.retain(|_, owner| owner != id);
    }

    /// Joins an instance to its claim.
    pub fn join_instance(&mut self, id: &ClaimId, instance: Instance) {
        let Some(claim) = self.claims.get_mut(id) else {
            return;
        };
        if let Some(before) = &claim.instance {
            self.by_instance.remove(&before.id);
        }
        self.by_instance.insert(instance.id.clone(), id.clone());
        claim.instance = Some(instance);
        (claim.missing_since, claim.missing_confirmed) = (None, false);
    }

    /// Returns the remaining capacity of reservations by ID, minus claims that the provider has not
    /// counted.
    pub fn remaining_reservations(
        &self,
        reservations: &BTreeMap<ReservationId, Reservation>,
    ) -> BTreeMap<ReservationId, Reservation> {
        let mut left = reservations.clone();
        if left.is_empty() {
            return left;
        }
        for claim in self.claims.values() {
            if let Some(reservation) = claim.reservation_id().and_then(|id| left.get_mut(id))
                && claim.is_missing_from_reservation(reservation.counted)
            {
                reservation.left = reservation.left.saturating_sub(1);
            }
        }
        left
    }

    /// Excludes the time from `from` to `now` from the waiting times of all claims, because no pass
    /// ran in it.
    pub fn skip_suspended_time(&mut self, from: Timestamp, now: Timestamp) {
        for claim in self.claims.values_mut() {
            let lost = now.duration_since(from.max(claim.since));
            claim.since = claim.since.checked_add(lost).unwrap_or(now);
        }
    }

    /// Applies a full listing of instances.
    pub fn apply_listing(
        &mut self,
        instances: Vec<Instance>,
        cluster: &Cluster,
        now: Timestamp,
    ) -> ListingResult {
        let mut outcome = ListingResult::default();
        let mut listed: Vec<(&InstanceId, bool)> =
            instances.iter().map(|instance| (&instance.id, instance.state.is_live())).collect();
        listed.sort_unstable();
        let last = self.last_listing.as_ref().map(|(_, last)| last);
        let same = last
            .filter(|last| last.iter().map(|(id, live)| (id, *live)).eq(listed.iter().copied()));
        outcome.news = !self.agreed || same.is_none();
        let fingerprint: ListedInstances = same
            .cloned()
            .unwrap_or_else(|| listed.iter().map(|(id, live)| ((*id).clone(), *live)).collect());
        self.ended.clear();
        self.foreign_instances.retain(|id| is_listed(&fingerprint, id));
        let mut changed = instances;
        changed.retain(|instance| !self.is_unchanged(instance));
        let changed: Vec<(Instance, Result<ClaimRecord, NotAClaim>)> = changed
            .into_iter()
            .map(|instance| {
                let record =
                    ClaimRecord::of_instance(&instance, &cluster.installation, &cluster.name);
                (instance, record)
            })
            .collect();
        // An exec provider may launch with several methods.
        self.names_fleets |= cluster.exec.is_none()
            && changed.iter().any(|(instance, record)| {
                let is_ours = record.as_ref().is_ok_and(|record| !is_older(instance, record));
                is_ours && instance.tags.contains_key(TAG_FLEET)
            });
        for (instance, record) in changed {
            self.apply_instance(instance, record, now, &mut outcome);
        }
        outcome.news |= self.mark_missing(&fingerprint, now, &mut outcome);
        self.compare_with_last(&fingerprint, now);
        outcome
    }

    /// Returns whether an instance is unchanged since the last listing. Most instances are
    /// unchanged, and are skipped.
    fn is_unchanged(&mut self, instance: &Instance) -> bool {
        let claim = self.by_instance.get(&instance.id);
        let claim = claim.and_then(|id| self.claims.get_mut(id));
        let is_newly_stopped = |claim: &NodeClaim| instance.state.is_stopped() && !claim.is_stopped;
        let Some(claim) = claim
            .filter(|claim| claim.instance.as_ref() == Some(instance) && !is_newly_stopped(claim))
        else {
            return false;
        };
        (claim.missing_since, claim.missing_confirmed) = (None, false);
        if instance.state == InstanceState::Terminated {
            self.ended.insert(instance.id.clone());
        }
        true
    }

    fn apply_instance(
        &mut self,
        instance: Instance,
        record: Result<ClaimRecord, NotAClaim>,
        now: Timestamp,
        outcome: &mut ListingResult,
    ) {
        let ended = instance.state == InstanceState::Terminated;
        let known = self.by_instance.get(&instance.id).cloned();
        outcome.news |= !ended || known.is_some();
        if let Some(id) = known {
            // An instance keeps its claim even if a user edits its tags.
            if !record.is_ok_and(|record| record.id == id) {
                let why = format!("its tags were edited: it remains claim {id} until a restart");
                self.record_foreign_instance(&instance.id, why, outcome);
            }
            self.update_instance(&id, instance);
            return;
        }
        let record = match record {
            Ok(record) => record,
            // The listing is filtered by these tags. Even if it were not, Outrigger must never
            // change these instances.
            Err(NotAClaim::Foreign) => return,
            Err(why) => {
                self.record_foreign_instance(&instance.id, why.to_string(), outcome);
                return;
            }
        };
        let id = record.id.clone();
        if self.is_copy(&instance, &record) {
            if instance.state.is_live() {
                let why = format!("its tags are a copy: claim {id} is a different instance");
                self.record_foreign_instance(&instance.id, why, outcome);
            }
            return;
        }
        if ended {
            self.ended.insert(instance.id.clone());
        }
        match self.claims.get(&id).map(|claim| &claim.instance) {
            Some(Some(_)) | None if !instance.state.is_live() => {}
            None if self.awaits_response(&record, &instance, now) => {}
            None => self.adopt_claim(record, instance, now, outcome),
            Some(None) => self.join_instance(&id, instance),
            // The first listing may contain only the copy. In later listings, no other instance
            // replaces the instance of a claim.
            Some(Some(current))
                if !self.agreed && originality_rank(&instance) < originality_rank(current) =>
            {
                let (copy, original) = (current.id.clone(), instance.id.clone());
                self.remove(&id);
                self.adopt_claim(record, instance, now, outcome);
                let why = format!("claim {id} belongs to the older instance {original}");
                self.record_foreign_instance(&copy, why, outcome);
            }
            Some(Some(current)) => {
                let why = format!("claim {id} already has instance {}", current.id);
                self.record_foreign_instance(&instance.id, why, outcome);
            }
        }
    }

    /// Updates a known instance. A listing may lag: a terminating instance never becomes live
    /// again.
    fn update_instance(&mut self, id: &ClaimId, instance: Instance) {
        if instance.state == InstanceState::Terminated {
            self.ended.insert(instance.id.clone());
        }
        let known = self.claims.get(id).and_then(|claim| claim.instance.as_ref());
        let state = match known.filter(|known| !known.state.is_live()) {
            Some(known) => known.state.max(instance.state),
            None => instance.state,
        };
        let was_stopped = known.is_some_and(|known| known.state.is_stopped());
        self.join_instance(id, Instance { state, ..instance });
        if let Some(claim) = self.claims.get_mut(id) {
            claim.is_stopped = was_stopped && state.is_stopped();
        }
    }

    /// Returns whether an instance of a batch may belong to a launch whose response has not arrived
    /// yet: the response determines which claim gets the instance. Until then the launches count
    /// towards limits, and their pods have places.
    fn awaits_response(&self, record: &ClaimRecord, instance: &Instance, now: Timestamp) -> bool {
        !instance.tags.contains_key(TAG_CLAIM)
            && now.duration_since(instance.launched) < RESPONSE_MAX
            && self.claims.values().any(|claim| {
                claim.phase == ClaimPhase::Launching
                    && claim.record.pool == record.pool
                    && claim.record.pool_hash == record.pool_hash
                    && claim.record.node_class_hash == record.node_class_hash
            })
    }

    /// Adopts the claim of an instance that was launched before this process started.
    fn adopt_claim(
        &mut self,
        record: ClaimRecord,
        instance: Instance,
        now: Timestamp,
        outcome: &mut ListingResult,
    ) {
        outcome.found.push(record.id.clone());
        let mut claim = NodeClaim::new(record, ClaimPhase::Launched, now);
        claim.since = instance.launched;
        claim.instance = Some(instance);
        self.insert(claim);
    }

    /// Returns whether a user launched an instance with copied tags ("launch more like this"), or
    /// added the tags to an instance that is older than the claim. An adopted instance was not
    /// launched by a fleet of Outrigger; its claim has the ID of the instance.
    fn is_copy(&self, instance: &Instance, record: &ClaimRecord) -> bool {
        match record.reason.as_str() {
            ADOPTED => record.id.as_str() != instance.id.as_str(),
            _ if is_older(instance, record) => true,
            _ => self.names_fleets && !instance.tags.contains_key(TAG_FLEET),
        }
    }

    fn record_foreign_instance(
        &mut self,
        instance: &InstanceId,
        why: String,
        outcome: &mut ListingResult,
    ) {
        if self.foreign_instances.insert(instance.clone()) {
            outcome.foreign_instances.push((instance.clone(), why));
        }
    }

    /// Marks live instances that a listing lacks. If too many are missing, the listing is ignored
    /// until a second, sufficiently later listing confirms it. Returns whether any is missing.
    fn mark_missing(
        &mut self,
        listed: &ListedInstances,
        now: Timestamp,
        outcome: &mut ListingResult,
    ) -> bool {
        let (mut known, mut missing) = (0, Vec::new());
        for claim in self.claims.values_mut().filter(|claim| !claim.foreign) {
            let Some(instance) = claim.instance.as_ref().filter(|instance| {
                instance.state != InstanceState::Terminated && !may_be_unlisted(instance, now)
            }) else {
                continue;
            };
            known += 1;
            if !is_listed(listed, &instance.id) {
                missing.push(claim);
            }
        }
        let ids: Vec<ClaimId> = missing.iter().map(|claim| claim.record.id.clone()).collect();
        let lacking = !ids.is_empty();
        if missing.len() > 1 && missing.len() * MISSING_SHARE_MAX > known {
            match &self.doubted {
                Some((at, same)) if *same == ids => {
                    outcome.partial = now.duration_since(*at) < LISTING_APART;
                }
                _ => {
                    outcome.partial = true;
                    self.doubted = Some((now, ids));
                }
            }
        } else {
            self.doubted = None;
        }
        if outcome.partial {
            return true;
        }
        for claim in missing {
            let since = *claim.missing_since.get_or_insert(now);
            claim.missing_confirmed |= now.duration_since(since) >= LISTING_APART;
        }
        lacking
    }

    fn compare_with_last(&mut self, fingerprint: &ListedInstances, now: Timestamp) {
        match &self.last_listing {
            // The listings are too close together: the earlier one remains the reference.
            Some((at, last)) if now.duration_since(*at) < LISTING_APART && last == fingerprint => {
                return;
            }
            Some((at, _)) if now.duration_since(*at) < LISTING_APART => {}
            Some((_, last)) => self.agreed |= last == fingerprint,
            None => {}
        }
        self.last_listing = Some((now, fingerprint.clone()));
    }
}
