//! Claims, and the instances and nodes that fulfil them: the join of three truths.
//! It must not know what is to be done about a claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::model::claim::{ADOPTED, ClaimPhase, ClaimRecord, NotAClaim, TAG_FLEET};
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, PoolName, ReservationId};
use crate::model::instance::{Instance, InstanceState, OfferingKey};
use crate::model::labels::Labels;
use crate::model::pool::Reason;
use crate::model::reservation::Reservation;

/// Instances that a listing shows, by id, and whether each is live.
type ListedInstances = Arc<[(InstanceId, bool)]>;

/// No instance of a claim is older than the claim by more than this: the clock of the host that
/// planned it and that of EC2 may have differed.
const OLDER_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Whether a machine is too old to have been launched for a claim.
fn is_older(instance: &Instance, record: &ClaimRecord) -> bool {
    record.created.duration_since(instance.launched) > OLDER_MAX
}

/// Orders instances of one claim: the first one is the original, since it names its fleet or is
/// older.
fn rank(instance: &Instance) -> (bool, Timestamp, &InstanceId) {
    let names_fleet = instance.tags.contains_key(TAG_FLEET);
    (!names_fleet, instance.launched, &instance.id)
}

/// One promised node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClaim {
    /// What the instance's tags remember.
    pub record: ClaimRecord,
    /// How far it has come.
    pub phase: ClaimPhase,
    /// When it came there, as far as we saw.
    pub since: Timestamp,
    /// What may be launched for it, cheapest first; empty once an instance exists.
    pub offerings: Vec<OfferingKey>,
    /// Labels its node gets beyond those of its pool and type.
    pub labels: Labels,
    /// Its instance.
    pub instance: Option<Instance>,
    /// Its Node.
    pub node: Option<NodeName>,
    /// Resources that its template was made to provide, once it was asked for; none where that is
    /// not known.
    pub devices: Option<BTreeSet<String>>,
    /// Pending pods it is planned for and will be given some time to get.
    pub pods: BTreeSet<PodKey>,
    /// Why it is leaving.
    pub leaving: Option<Reason>,
    /// Since when others are to take its place, before it leaves.
    pub replaced_since: Option<Timestamp>,
    /// Until when it does not leave on purpose, since it was to and could not, and how often.
    pub withdrawn: Option<(Timestamp, u32)>,
    /// Until when its node may yet be closed by what was sent before it was decided that it stays.
    pub closing_until: Option<Timestamp>,
    /// Whether another has made its node, and it is only counted as if it were ours: no listing
    /// shows its instance.
    pub foreign: bool,
    /// When its instance was first missing from a listing.
    missing_since: Option<Timestamp>,
    /// Whether a later listing, far enough from the first, lacked it too.
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
            missing_since: None,
            missing_confirmed: false,
        }
    }

    /// Whether it leaves since it is as old as it may be at all: nothing that is said against it
    /// counts then.
    pub fn has_to_leave(&self, now: Timestamp) -> bool {
        self.leaving == Some(Reason::Expired) && self.record.is_overdue(now)
    }

    /// Whether its instance is gone: ended, or missing from two listings far enough apart.
    pub fn instance_is_gone(&self) -> bool {
        self.missing_confirmed
            || self
                .instance
                .as_ref()
                .is_some_and(|own| own.state == InstanceState::Terminated)
    }

    /// The reservation it holds one of: that of its instance or, before there is one, that of its
    /// offerings, which are all of one reservation or of none.
    pub fn reservation(&self) -> Option<&ReservationId> {
        let launched = self.instance.as_ref().map(|own| &own.offering);
        let offering = launched.or_else(|| self.offerings.first())?;
        offering.reservation.as_deref()
    }

    /// Whether it holds one of its reservation that the provider did not take off when it counted:
    /// it is about to be launched, or was launched about then or later.
    fn is_uncounted(&self, counted: Option<Timestamp>) -> bool {
        let Some(instance) = &self.instance else {
            return true;
        };
        let later = |at: Timestamp| at.duration_since(instance.launched) < LISTING_LAG;
        instance.state != InstanceState::Terminated && counted.is_none_or(later)
    }

    /// Whether pods may be planned onto it.
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

/// A new instance may be missing from listings for this long: EC2 is eventually consistent.
const LISTING_LAG: SignedDuration = SignedDuration::from_secs(60);

/// Two listings count as independent when they are this far apart.
pub const LISTING_APART: SignedDuration = SignedDuration::from_secs(5);

/// More missing instances than this share of those we knew is no listing to believe.
const MISSING_SHARE_MAX: usize = 5;

/// What a listing of instances told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingResult {
    /// Instances that bear our tags but cannot be claims, and why.
    pub strangers: Vec<(InstanceId, String)>,
    /// Claims that a listing brought in.
    pub found: Vec<ClaimId>,
    /// Whether so many instances were missing that the listing is taken for partial.
    pub partial: bool,
    /// Whether it told anything that was not known.
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
    strangers: BTreeSet<InstanceId>,
    ended: BTreeSet<InstanceId>,
    /// Whether some instance says which fleet launched it: those of a provider that does not write
    /// this would all be copies.
    names_fleets: bool,
}

impl NodeClaims {
    /// The pool of a claim; the empty name where there is no such claim.
    pub fn pool_of(&self, claim: &ClaimId) -> PoolName {
        let claim = self.claims.get(claim);
        claim.map_or(PoolName::default(), |own| own.record.pool.clone())
    }

    /// The claim an instance fulfils.
    pub fn by_instance(&self, instance: &str) -> Option<&ClaimId> {
        self.by_instance.get(instance)
    }

    /// Whether the last listing showed this instance of ours as ended.
    pub fn has_ended(&self, instance: &str) -> bool {
        self.ended.contains(instance)
    }

    /// Whether the last listing showed this instance as live, a claim's or not.
    pub fn is_listed_live(&self, instance: &str) -> bool {
        let mut listed = self.last_listing.iter().flat_map(|(_, all)| &all[..]);
        listed.any(|(id, live)| *live && id.as_str() == instance)
    }

    /// Whether two listings at least `LISTING_APART` apart have agreed since the start.
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
            self.by_instance
                .insert(instance.id.clone(), claim.record.id.clone());
        }
        self.claims.insert(claim.record.id.clone(), claim);
    }

    /// Forgets a claim that is gone.
    pub fn remove(&mut self, id: &ClaimId) {
        self.claims.remove(id);
        self.by_instance.retain(|_, owner| owner != id);
    }

    /// Joins an instance to its claim.
    pub fn join(&mut self, id: &ClaimId, instance: Instance) {
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

    /// What is left of reservations, by id, less what our claims hold that was not counted.
    pub fn left_of(
        &self,
        reservations: &BTreeMap<ReservationId, Reservation>,
    ) -> BTreeMap<ReservationId, Reservation> {
        let mut left = reservations.clone();
        if left.is_empty() {
            return left;
        }
        for claim in self.claims.values() {
            if let Some(own) = claim.reservation().and_then(|id| left.get_mut(id))
                && claim.is_uncounted(own.counted)
            {
                own.left = own.left.saturating_sub(1);
            }
        }
        left
    }

    /// Nothing was done from `from` to `now`: no claim is held to have waited meanwhile.
    pub fn skip(&mut self, from: Timestamp, now: Timestamp) {
        for claim in self.claims.values_mut() {
            let lost = now.duration_since(from.max(claim.since));
            claim.since = claim.since.checked_add(lost).unwrap_or(now);
        }
    }

    /// Takes a full listing of our instances in.
    pub fn listed(
        &mut self,
        instances: Vec<Instance>,
        cluster: &Cluster,
        now: Timestamp,
    ) -> ListingResult {
        let mut outcome = ListingResult::default();
        let listed = instances.iter();
        let mut listed: Vec<(&InstanceId, bool)> =
            listed.map(|own| (&own.id, own.state.is_live())).collect();
        listed.sort_unstable();
        let last = self.last_listing.as_ref().map(|(_, last)| last);
        let same = last.filter(|last| {
            last.iter()
                .map(|(id, live)| (id, *live))
                .eq(listed.iter().copied())
        });
        outcome.news = !self.agreed || same.is_none();
        let anew = || {
            listed
                .iter()
                .map(|(id, live)| ((*id).clone(), *live))
                .collect()
        };
        let fingerprint: ListedInstances = same.cloned().unwrap_or_else(anew);
        self.ended.clear();
        let seen = |id: &InstanceId| fingerprint.binary_search_by(|own| own.0.cmp(id)).is_ok();
        self.strangers.retain(seen);
        let mut news = instances;
        news.retain(|own| !self.is_known(own));
        let read = |own: Instance| {
            let record = ClaimRecord::from_tags(&own.tags, &cluster.installation, &cluster.name);
            (own, record)
        };
        let news: Vec<(Instance, Result<ClaimRecord, NotAClaim>)> =
            news.into_iter().map(read).collect();
        // A program of the user may buy in several ways.
        self.names_fleets |= cluster.exec.is_none()
            && news.iter().any(|(own, record)| {
                let is_ours = record.as_ref().is_ok_and(|record| !is_older(own, record));
                is_ours && own.tags.contains_key(TAG_FLEET)
            });
        for (instance, record) in news {
            self.take_instance(instance, record, now, &mut outcome);
        }
        outcome.news |= self.mark_missing(&seen, now, &mut outcome);
        self.settle(&fingerprint, now);
        outcome
    }

    /// Whether a listing says of an instance what is known already. Most do: they are not read.
    fn is_known(&mut self, instance: &Instance) -> bool {
        let claim = self.by_instance.get(&instance.id);
        let claim = claim.and_then(|id| self.claims.get_mut(id));
        let Some(claim) = claim.filter(|own| own.instance.as_ref() == Some(instance)) else {
            return false;
        };
        (claim.missing_since, claim.missing_confirmed) = (None, false);
        if instance.state == InstanceState::Terminated {
            self.ended.insert(instance.id.clone());
        }
        true
    }

    fn take_instance(
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
            // An instance stays the claim that it is, also where a user edits its tags.
            if !record.is_ok_and(|own| own.id == id) {
                let why = format!("its tags were edited: it stays claim {id} until a restart");
                self.stranger(&instance.id, why, outcome);
            }
            self.join_again(&id, instance);
            return;
        }
        let record = match record {
            Ok(record) => record,
            // The listing is filtered by these tags; should it not be, we still never touch it.
            Err(NotAClaim::Foreign) => return,
            Err(why) => {
                self.stranger(&instance.id, why.to_string(), outcome);
                return;
            }
        };
        let id = record.id.clone();
        if self.is_copy(&instance, &record) {
            if instance.state.is_live() {
                let why = format!("its tags are copied: claim {id} was not launched as this one");
                self.stranger(&instance.id, why, outcome);
            }
            return;
        }
        if ended {
            self.ended.insert(instance.id.clone());
        }
        match self.claims.get(&id).map(|claim| &claim.instance) {
            Some(Some(_)) | None if !instance.state.is_live() => {}
            None => self.find(record, instance, now, outcome),
            Some(None) => self.join(&id, instance),
            // The first listing may show the copy alone. Later no instance takes another's claim.
            Some(Some(own)) if !self.agreed && rank(&instance) < rank(own) => {
                let (copy, original) = (own.id.clone(), instance.id.clone());
                self.remove(&id);
                self.find(record, instance, now, outcome);
                let why = format!("claim {id} has instance {original}, which is older");
                self.stranger(&copy, why, outcome);
            }
            Some(Some(own)) => {
                let why = format!("claim {id} has instance {} already", own.id);
                self.stranger(&instance.id, why, outcome);
            }
        }
    }

    /// Takes in what a listing says of a claim's instance. It may lag behind: what is ending does
    /// not come back to life.
    fn join_again(&mut self, id: &ClaimId, instance: Instance) {
        if instance.state == InstanceState::Terminated {
            self.ended.insert(instance.id.clone());
        }
        let own = self
            .claims
            .get(id)
            .and_then(|claim| claim.instance.as_ref());
        let own = own.map_or(instance.state, |own| own.state);
        let state = match own.is_live() {
            true => instance.state,
            false => own.max(instance.state),
        };
        self.join(id, Instance { state, ..instance });
    }

    /// Takes over the claim of an instance that was launched in an earlier life.
    fn find(
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

    /// Whether a user has launched an instance with the tags of one of ours ("launch more like
    /// this"), or has given them to a machine that is older than the claim. No fleet of ours has
    /// launched an adopted instance; its claim has the instance's own id.
    fn is_copy(&self, instance: &Instance, record: &ClaimRecord) -> bool {
        match record.reason.as_str() {
            ADOPTED => record.id.as_str() != instance.id.as_str(),
            _ if is_older(instance, record) => true,
            _ => self.names_fleets && !instance.tags.contains_key(TAG_FLEET),
        }
    }

    fn stranger(&mut self, instance: &InstanceId, why: String, outcome: &mut ListingResult) {
        if self.strangers.insert(instance.clone()) {
            outcome.strangers.push((instance.clone(), why));
        }
    }

    /// Notes which live instances a listing lacks. Where too many are lacking at once the listing
    /// counts for nothing until another one, far enough from it, says the same. Returns whether any
    /// is lacking.
    fn mark_missing(
        &mut self,
        seen: &impl Fn(&InstanceId) -> bool,
        now: Timestamp,
        outcome: &mut ListingResult,
    ) -> bool {
        let overdue = |claim: &&mut NodeClaim| {
            claim.instance.as_ref().is_some_and(|instance| {
                instance.state != InstanceState::Terminated
                    && now.duration_since(instance.launched) >= LISTING_LAG
            })
        };
        let (mut known, mut missing) = (0, Vec::new());
        let ours = |claim: &&mut NodeClaim| !claim.foreign;
        for claim in self.claims.values_mut().filter(ours).filter(overdue) {
            known += 1;
            if claim
                .instance
                .as_ref()
                .is_some_and(|instance| !seen(&instance.id))
            {
                missing.push(claim);
            }
        }
        let ids: Vec<ClaimId> = missing
            .iter()
            .map(|claim| claim.record.id.clone())
            .collect();
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

    fn settle(&mut self, fingerprint: &ListedInstances, now: Timestamp) {
        match &self.last_listing {
            // Too close to tell: the earlier one stays the one to compare with.
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
