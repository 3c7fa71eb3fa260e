//! Unavailable offerings: a launch of them has failed recently, and they are not requested before
//! the end of a back-off.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{ClaimId, NodeClassName, PoolName, Zone};
use crate::model::instance::{CapacityType, OfferingKey, UnavailableKey};

/// The first back-off of a failed offering: three minutes as in Karpenter (spec/aws.md §0.2).
pub const HOLD: SignedDuration = SignedDuration::from_mins(3);

/// Each failed retry doubles the back-off, up to this maximum.
pub const HOLD_MAX: SignedDuration = SignedDuration::from_mins(30);

/// If an offering fails later than this after the end of its back-off, it gets the shortest
/// back-off again.
const MEMORY: SignedDuration = SignedDuration::from_mins(30);

/// Whether a launch may request an offering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The launch may request the offering.
    Free,
    /// The back-off has ended, and a different launch is retrying the offering.
    Tried,
    /// The offering is in back-off.
    Held,
}

/// An offering that is, or was recently, unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    until: Timestamp,
    /// Length of the back-off; zero after a successful launch.
    length: SignedDuration,
    trial: Trial,
}

/// Whether a launch has retried the offering since its back-off ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trial {
    /// No launch has retried it.
    Due,
    /// This claim retried it last.
    AskedBy(ClaimId),
    /// A retry of the offering succeeded.
    Over,
}

impl Hold {
    fn new(until: Timestamp, now: Timestamp) -> Self {
        Self { until, length: until.duration_since(now), trial: Trial::Due }
    }

    /// Records a failure. Failures of requests that were sent together count as one failure.
    fn after_refusal(hold: Option<Self>, now: Timestamp) -> Self {
        match hold.filter(|hold| hold.is_known(now)) {
            Some(hold) if hold.until > now => hold,
            Some(hold) => {
                let twice = hold.length.saturating_mul(2);
                let until = now.checked_add(twice.clamp(HOLD, HOLD_MAX));
                Self::new(until.unwrap_or(now), now)
            }
            None => Self::new(now.checked_add(HOLD).unwrap_or(now), now),
        }
    }

    /// Returns whether the back-off has ended without a successful retry so far.
    fn is_on_trial(&self, now: Timestamp) -> bool {
        let is_over = self.length == SignedDuration::ZERO || self.trial == Trial::Over;
        self.until <= now && !is_over && self.is_known(now)
    }

    fn requesting_claim(&self) -> Option<&ClaimId> {
        match &self.trial {
            Trial::AskedBy(claim) => Some(claim),
            Trial::Due | Trial::Over => None,
        }
    }

    fn is_known(&self, now: Timestamp) -> bool {
        let until = self.until.checked_add(MEMORY);
        until.is_ok_and(|until| until > now)
    }
}

/// Unavailable offerings, each with the end of its back-off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailableOfferings {
    /// Offerings that are unavailable for all node classes.
    general: BTreeMap<OfferingKey, Hold>,
    /// Unavailable offerings of one node class, whose template, image or subnets are the cause.
    by_class: BTreeMap<NodeClassName, BTreeMap<OfferingKey, Hold>>,
    /// Unavailable capacity types.
    ways: BTreeMap<CapacityType, Hold>,
    /// Pools whose nodes do not register.
    pub untried: BTreeMap<PoolName, Untried>,
}

/// Zones in which nodes of a pool do not register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untried {
    /// Zones without registration, with the time of the next retry.
    pub until: BTreeMap<Zone, Timestamp>,
    /// The next retry in any zone, while no node has registered. `None` if a retry is allowed now.
    pub all_until: Option<Timestamp>,
    /// Zones in which a node has registered since the first failure. In all other zones one node at
    /// a time is launched.
    pub proven: BTreeSet<Zone>,
    /// Deadline of the current retry. [`Timestamp::MIN`] in a plan that may include a retry.
    pub tried: Option<Timestamp>,
}

impl UnavailableOfferings {
    /// Records a failed launch of an offering, for all node classes or one. Returns the end of the
    /// back-off.
    pub fn record_refusal(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
    ) -> Timestamp {
        let holds = match class {
            Some(class) => self.by_class.entry(class.clone()).or_default(),
            None => &mut self.general,
        };
        let hold = Hold::after_refusal(holds.remove(offering), now);
        let until = hold.until;
        holds.insert(offering.clone(), hold);
        until
    }

    /// Records that a capacity type is unavailable. Returns the end of the back-off.
    pub fn record_refused_capacity_type(
        &mut self,
        capacity_type: CapacityType,
        now: Timestamp,
    ) -> Timestamp {
        let hold = Hold::after_refusal(self.ways.remove(&capacity_type), now);
        let until = hold.until;
        self.ways.insert(capacity_type, hold);
        until
    }

    /// Marks an offering or a capacity type as unavailable until a time. A later existing end is
    /// kept.
    pub fn mark_unavailable(
        &mut self,
        offering: impl Into<UnavailableKey>,
        until: Timestamp,
        now: Timestamp,
    ) {
        let new = Hold::new(until, now);
        let hold = match offering.into() {
            UnavailableKey::Offering(offering) => self.general.entry(offering).or_insert(new),
            UnavailableKey::Way(capacity_type) => self.ways.entry(capacity_type).or_insert(new),
        };
        if hold.until < until {
            *hold = Hold::new(until, now);
        }
    }

    /// Records a successful launch: the next failure is treated as the first one. Current back-offs
    /// continue.
    pub fn mark_available(&mut self, class: Option<&NodeClassName>, offering: &OfferingKey) {
        for hold in self.holds_for_mut(class, offering) {
            hold.length = SignedDuration::ZERO;
        }
    }

    /// Forgets the unavailable offerings of other node classes than these.
    pub fn retain_classes(&mut self, is_kept: impl Fn(&NodeClassName) -> bool) {
        self.by_class.retain(|class, _| is_kept(class));
    }

    /// Returns whether no offering is or was recently unavailable.
    pub fn is_empty(&self) -> bool {
        self.general.is_empty()
            && self.by_class.is_empty()
            && self.ways.is_empty()
            && self.untried.is_empty()
    }

    /// Returns whether no node of a pool may be planned in a zone because registration there is
    /// uncertain.
    pub fn is_zone_excluded(&self, pool: &PoolName, zone: &Zone) -> bool {
        self.untried.get(pool).is_some_and(|untried| {
            let waits = untried.all_until.is_some() || untried.until.contains_key(zone);
            let is_excluded = waits || untried.tried != Some(Timestamp::MIN);
            is_excluded && !untried.proven.contains(zone)
        })
    }

    /// Returns when an offering is next requested for a pool and its node class, after failed
    /// launches and missing registrations. `None` if unknown.
    pub fn next_request_at(
        &self,
        pool: &PoolName,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> Option<Timestamp> {
        let untried = self.untried.get(pool).and_then(|untried| {
            let in_zone = untried.until.get(&offering.zone).copied();
            in_zone.max(untried.all_until).max(untried.tried)
        });
        self.held_until(class, offering).max(untried)
    }

    /// Returns whether the offering is unavailable at `now` for a node class.
    pub fn is_held(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
    ) -> bool {
        self.held_until(class, offering).is_some_and(|until| until > now)
    }

    /// Decides whether a launch for a node class may request an offering. `tries` returns whether
    /// the launch of a claim is in flight.
    pub fn access_for(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
        tries: impl Fn(&ClaimId) -> bool,
    ) -> Access {
        if self.is_held(class, offering, now) {
            return Access::Held;
        }
        let on_trial = self.holds_for(class, offering).filter(|hold| hold.is_on_trial(now));
        match on_trial.filter_map(Hold::requesting_claim).any(tries) {
            true => Access::Tried,
            false => Access::Free,
        }
    }

    /// Records that the launch of a claim requests an offering. If the offering failed recently,
    /// other launches wait for this one.
    pub fn record_request(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        claim: &ClaimId,
        now: Timestamp,
    ) {
        for hold in self.holds_for_mut(class, offering) {
            if hold.is_on_trial(now) {
                hold.trial = Trial::AskedBy(claim.clone());
            }
        }
    }

    /// Records that the launch of a claim succeeded with this or a different offering. Other
    /// launches stop waiting for it.
    pub fn record_success(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        claim: &ClaimId,
    ) {
        for hold in self.holds_for_mut(class, offering) {
            if hold.requesting_claim() == Some(claim) {
                hold.trial = Trial::Over;
            }
        }
    }

    /// Returns the end of the last back-off of an offering for a node class.
    pub fn held_until(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> Option<Timestamp> {
        self.holds_for(class, offering).map(|hold| hold.until).max()
    }

    /// Returns the entries that apply to an offering.
    fn holds_for(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> impl Iterator<Item = &Hold> {
        let by_class = class.and_then(|class| self.by_class.get(class));
        let of_class = by_class.and_then(|holds| holds.get(offering));
        let of_capacity_type = self.ways.get(&offering.capacity_type);
        [self.general.get(offering), of_class, of_capacity_type].into_iter().flatten()
    }

    fn holds_for_mut(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> impl Iterator<Item = &mut Hold> {
        let by_class = class.and_then(|class| self.by_class.get_mut(class));
        let of_class = by_class.and_then(|holds| holds.get_mut(offering));
        let of_capacity_type = self.ways.get_mut(&offering.capacity_type);
        let general = self.general.get_mut(offering);
        [general, of_class, of_capacity_type].into_iter().flatten()
    }

    /// Returns when the next offering becomes available again.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let of_classes = self.by_class.values().flat_map(BTreeMap::values);
        let of_all = self.general.values().chain(self.ways.values());
        let ends = of_all.chain(of_classes).map(|hold| hold.until);
        ends.filter(|until| *until > now).min()
    }

    /// Removes entries that are no longer relevant.
    pub fn expire(&mut self, now: Timestamp) {
        self.general.retain(|_, hold| hold.is_known(now));
        self.ways.retain(|_, hold| hold.is_known(now));
        self.by_class.retain(|_, holds| {
            holds.retain(|_, hold| hold.is_known(now));
            !holds.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{HOLD, UnavailableOfferings};
    use crate::model::instance::{CapacityType, OfferingKey};

    fn offering(capacity_type: CapacityType) -> OfferingKey {
        OfferingKey {
            instance_type: "m7i.large".into(),
            zone: "a".into(),
            capacity_type,
            reservation: None,
        }
    }

    #[test]
    fn back_off_grows_with_each_failure_until_a_launch_succeeds() {
        let spot = offering(CapacityType::Spot);
        let mut offerings = UnavailableOfferings::default();
        let mut now = Timestamp::UNIX_EPOCH;
        // Minutes until the failure, whether a launch succeeds first, and the length of the back-
        // off.
        let steps = [
            (0, false, 3),
            // A failure during the back-off does not extend it.
            (1, false, 2),
            (2, false, 6),
            (10, false, 12),
            (12, false, 24),
            (24, false, 30),
            (30, false, 30),
            (30, true, 3),
            (3, false, 6),
            // Half an hour after its end, the back-off is forgotten.
            (36, false, 3),
        ];
        for (step, (wait, is_available, minutes)) in steps.into_iter().enumerate() {
            now += SignedDuration::from_mins(wait);
            offerings.expire(now);
            if is_available {
                offerings.mark_available(None, &spot);
            }
            let until = offerings.record_refusal(None, &spot, now);
            let expect = now + SignedDuration::from_mins(minutes);
            assert_eq!(until, expect, "step {step}");
            assert!(offerings.is_held(None, &spot, now), "step {step}");
            assert!(!offerings.is_held(None, &spot, until), "step {step}");
        }
    }

    #[test]
    fn successful_launch_does_not_end_a_running_back_off() {
        let spot = offering(CapacityType::Spot);
        let now = Timestamp::UNIX_EPOCH;
        let mut offerings = UnavailableOfferings::default();
        let until = offerings.record_refusal(None, &spot, now);
        offerings.mark_available(None, &spot);
        assert!(offerings.is_held(None, &spot, now));
        assert_eq!(offerings.record_refusal(None, &spot, until), until + HOLD);
    }

    #[test]
    fn refusal_of_one_node_class_does_not_affect_others() {
        let (one, other) = ("one".into(), "other".into());
        let spot = offering(CapacityType::Spot);
        let now = Timestamp::UNIX_EPOCH;
        let mut offerings = UnavailableOfferings::default();
        offerings.record_refusal(Some(&one), &spot, now);
        let held = |class| offerings.is_held(class, &spot, now);
        assert_eq!([held(Some(&one)), held(Some(&other)), held(None)], [true, false, false]);
    }

    #[test]
    fn capacity_type_can_be_unavailable_as_a_whole() {
        let now = Timestamp::UNIX_EPOCH;
        let mut offerings = UnavailableOfferings::default();
        let until = offerings.record_refused_capacity_type(CapacityType::Spot, now);
        let held = |capacity_type| offerings.is_held(None, &offering(capacity_type), now);
        assert_eq!([held(CapacityType::Spot), held(CapacityType::OnDemand)], [true, false]);
        assert_eq!(until, now + HOLD);
    }
}
