//! Offerings that were refused lately and are not asked for again until a time.
//! It must not know who was refused.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{ClaimId, NodeClassName, PoolName, Zone};
use crate::model::instance::{CapacityType, OfferingKey, UnavailableKey};

/// How long a refused offering is left alone. Karpenter's three minutes (spec/aws.md §0.2).
pub const HOLD: SignedDuration = SignedDuration::from_mins(3);

/// Each refusal that follows upon the end of a hold doubles it, up to this.
pub const HOLD_MAX: SignedDuration = SignedDuration::from_mins(30);

/// A refusal that comes so long after the end of a hold has nothing to do with it.
const MEMORY: SignedDuration = SignedDuration::from_mins(30);

/// Whether a launch may ask for an offering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may ask.
    Free,
    /// The hold has ended, and another launch asks for the offering now.
    Tried,
    /// The offering is held down.
    Held,
}

/// An offering that is, or was lately, held down.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    until: Timestamp,
    /// How long it was for; zero once the offering was had.
    length: SignedDuration,
    trial: Trial,
}

/// Whether a launch has asked for an offering since the end of its hold.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trial {
    /// No launch has.
    Due,
    /// The launch of this claim was the last one that has.
    AskedBy(ClaimId),
    /// A launch that asked for it has succeeded.
    Over,
}

impl Hold {
    fn new(until: Timestamp, now: Timestamp) -> Self {
        Self {
            until,
            length: until.duration_since(now),
            trial: Trial::Due,
        }
    }

    /// It is refused once more. Those that were asked for together and refused one after the other
    /// count once.
    fn refused(own: Option<Self>, now: Timestamp) -> Self {
        let known = own.filter(|own| own.is_known(now));
        match known {
            Some(own) if own.until > now => own,
            Some(own) => {
                let twice = own.length.saturating_mul(2);
                let until = now.checked_add(twice.clamp(HOLD, HOLD_MAX));
                Self::new(until.unwrap_or(now), now)
            }
            None => Self::new(now.checked_add(HOLD).unwrap_or(now), now),
        }
    }

    /// Whether the hold has ended, and no launch that asked for the offering has succeeded since.
    fn is_on_trial(&self, now: Timestamp) -> bool {
        let is_over = self.length == SignedDuration::ZERO || self.trial == Trial::Over;
        self.until <= now && !is_over && self.is_known(now)
    }

    fn asked_by(&self) -> Option<&ClaimId> {
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

/// Offerings held down until a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailableOfferings {
    /// For everyone.
    general: BTreeMap<OfferingKey, Hold>,
    /// For the nodes of one class, whose template, image or subnets are at fault.
    by_class: BTreeMap<NodeClassName, BTreeMap<OfferingKey, Hold>>,
    /// All that is bought like this.
    ways: BTreeMap<CapacityType, Hold>,
    /// Pools of which nodes do not register.
    pub untried: BTreeMap<PoolName, Untried>,
}

/// Where nodes of a pool do not register, or may not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untried {
    /// Zones in which they do not, and when one is tried there again.
    pub until: BTreeMap<Zone, Timestamp>,
    /// When one is tried in any zone, while none has registered; none where one may be now.
    pub all_until: Option<Timestamp>,
    /// Zones in which one has registered since. In all others one at a time is tried.
    pub proven: BTreeSet<Zone>,
    /// By when it is known of the one that is tried now; none where none is. A plan that may have
    /// one is made with [`Timestamp::MIN`].
    pub tried: Option<Timestamp>,
}

impl UnavailableOfferings {
    /// An offering was refused, to everyone or to nodes of one class. Says until when it is held.
    pub fn refuse(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
    ) -> Timestamp {
        let holds = match class {
            Some(class) => self.by_class.entry(class.clone()).or_default(),
            None => &mut self.general,
        };
        let hold = Hold::refused(holds.remove(offering), now);
        let until = hold.until;
        holds.insert(offering.clone(), hold);
        until
    }

    /// Nothing may be bought like this. Says until when that is held.
    pub fn refuse_way(&mut self, way: CapacityType, now: Timestamp) -> Timestamp {
        let hold = Hold::refused(self.ways.remove(&way), now);
        let until = hold.until;
        self.ways.insert(way, hold);
        until
    }

    /// Holds something down until a time, or until later where it is held already.
    pub fn hold(&mut self, what: impl Into<UnavailableKey>, until: Timestamp, now: Timestamp) {
        let new = Hold::new(until, now);
        let own = match what.into() {
            UnavailableKey::Offering(offering) => self.general.entry(offering).or_insert(new),
            UnavailableKey::Way(way) => self.ways.entry(way).or_insert(new),
        };
        if own.until < until {
            *own = Hold::new(until, now);
        }
    }

    /// An offering was had: should it be refused again, that is for the first time. What is held
    /// stays held.
    pub fn had(&mut self, class: Option<&NodeClassName>, offering: &OfferingKey) {
        for hold in self.of_mut(class, offering) {
            hold.length = SignedDuration::ZERO;
        }
    }

    /// Whether nothing is held down, nor was lately.
    pub fn is_empty(&self) -> bool {
        self.general.is_empty()
            && self.by_class.is_empty()
            && self.ways.is_empty()
            && self.untried.is_empty()
    }

    /// Whether no node of a pool may be planned in a zone, since it is not known that one registers
    /// there.
    pub fn is_untried(&self, pool: &PoolName, zone: &Zone) -> bool {
        let own = self.untried.get(pool);
        own.is_some_and(|own| {
            let waits = own.all_until.is_some() || own.until.contains_key(zone);
            let shut = waits || own.tried != Some(Timestamp::MIN);
            shut && !own.proven.contains(zone)
        })
    }

    /// When an offering is next asked for, for nodes of a pool and its class: neither a refusal nor
    /// a node that does not register keeps it held any more. None where nothing says when.
    pub fn ends(
        &self,
        (pool, class): (&PoolName, Option<&NodeClassName>),
        offering: &OfferingKey,
    ) -> Option<Timestamp> {
        let refused = self.until(class, offering);
        let untried = self.untried.get(pool);
        let zone = |own: &Untried| own.until.get(&offering.zone).copied();
        let untried = untried.and_then(|own| zone(own).max(own.all_until).max(own.tried));
        refused.max(untried)
    }

    /// Whether the offering is held down at `now` for nodes of a class.
    pub fn is_held(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
    ) -> bool {
        self.until(class, offering).is_some_and(|until| until > now)
    }

    /// Decides whether a launch for nodes of a class may ask for an offering. `tries` says whether
    /// the launch of a claim is on its way.
    pub fn access(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        now: Timestamp,
        tries: impl Fn(&ClaimId) -> bool,
    ) -> Access {
        if self.is_held(class, offering, now) {
            return Access::Held;
        }
        let on_trial = self.of(class, offering).filter(|own| own.is_on_trial(now));
        match on_trial.filter_map(Hold::asked_by).any(tries) {
            true => Access::Tried,
            false => Access::Free,
        }
    }

    /// Records that the launch of a claim asks for an offering. If the offering was refused lately,
    /// other launches wait for this one.
    pub fn asked(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        claim: &ClaimId,
        now: Timestamp,
    ) {
        for hold in self.of_mut(class, offering) {
            if hold.is_on_trial(now) {
                hold.trial = Trial::AskedBy(claim.clone());
            }
        }
    }

    /// Records that the launch of a claim has succeeded. It had asked for this offering, and may
    /// have got another one; other launches stop waiting for it.
    pub fn answered(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
        claim: &ClaimId,
    ) {
        for hold in self.of_mut(class, offering) {
            if hold.asked_by() == Some(claim) {
                hold.trial = Trial::Over;
            }
        }
    }

    /// Until when the offering is held down for nodes of a class, if it is or was lately.
    pub fn until(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> Option<Timestamp> {
        self.of(class, offering).map(|hold| hold.until).max()
    }

    /// The holds that apply to an offering.
    fn of(
        &self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> impl Iterator<Item = &Hold> {
        let by_class = class.and_then(|class| self.by_class.get(class));
        let own = by_class.and_then(|holds| holds.get(offering));
        let way = self.ways.get(&offering.capacity_type);
        [self.general.get(offering), own, way].into_iter().flatten()
    }

    fn of_mut(
        &mut self,
        class: Option<&NodeClassName>,
        offering: &OfferingKey,
    ) -> impl Iterator<Item = &mut Hold> {
        let by_class = class.and_then(|class| self.by_class.get_mut(class));
        let own = by_class.and_then(|holds| holds.get_mut(offering));
        let way = self.ways.get_mut(&offering.capacity_type);
        let general = self.general.get_mut(offering);
        [general, own, way].into_iter().flatten()
    }

    /// When something is next held down no longer.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let of_classes = self.by_class.values().flat_map(BTreeMap::values);
        let of_all = self.general.values().chain(self.ways.values());
        let ends = of_all.chain(of_classes).map(|hold| hold.until);
        ends.filter(|until| *until > now).min()
    }

    /// Forgets what was held down so long ago that it does not matter any more.
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

    fn offering(way: CapacityType) -> OfferingKey {
        OfferingKey {
            instance_type: "m7i.large".into(),
            zone: "a".into(),
            capacity_type: way,
            reservation: None,
        }
    }

    #[test]
    fn a_hold_grows_with_each_refusal_after_its_end_until_the_offering_is_had() {
        let spot = offering(CapacityType::Spot);
        let mut holds = UnavailableOfferings::default();
        let mut now = Timestamp::UNIX_EPOCH;
        // Minutes to wait before the refusal, whether it is had first, and how long it is held.
        let steps = [
            (0, false, 3),
            // While it is held it is not held for longer.
            (1, false, 2),
            (2, false, 6),
            (10, false, 12),
            (12, false, 24),
            (24, false, 30),
            (30, false, 30),
            (30, true, 3),
            (3, false, 6),
            // Half an hour after its end nothing is left of it.
            (36, false, 3),
        ];
        for (step, (wait, had, minutes)) in steps.into_iter().enumerate() {
            now += SignedDuration::from_mins(wait);
            holds.expire(now);
            if had {
                holds.had(None, &spot);
            }
            let until = holds.refuse(None, &spot, now);
            let expect = now + SignedDuration::from_mins(minutes);
            assert_eq!(until, expect, "step {step}");
            assert!(holds.is_held(None, &spot, now), "step {step}");
            assert!(!holds.is_held(None, &spot, until), "step {step}");
        }
    }

    #[test]
    fn what_is_had_while_it_is_held_stays_held() {
        let spot = offering(CapacityType::Spot);
        let now = Timestamp::UNIX_EPOCH;
        let mut holds = UnavailableOfferings::default();
        let until = holds.refuse(None, &spot, now);
        holds.had(None, &spot);
        assert!(holds.is_held(None, &spot, now));
        assert_eq!(holds.refuse(None, &spot, until), until + HOLD);
    }

    #[test]
    fn what_one_class_is_refused_others_may_ask_for() {
        let (one, other) = ("one".into(), "other".into());
        let spot = offering(CapacityType::Spot);
        let now = Timestamp::UNIX_EPOCH;
        let mut holds = UnavailableOfferings::default();
        holds.refuse(Some(&one), &spot, now);
        let held = |class| holds.is_held(class, &spot, now);
        assert_eq!(
            [held(Some(&one)), held(Some(&other)), held(None)],
            [true, false, false]
        );
    }

    #[test]
    fn one_way_of_buying_is_held_down_as_a_whole() {
        let now = Timestamp::UNIX_EPOCH;
        let mut holds = UnavailableOfferings::default();
        let until = holds.refuse_way(CapacityType::Spot, now);
        let held = |way| holds.is_held(None, &offering(way), now);
        assert_eq!(
            [held(CapacityType::Spot), held(CapacityType::OnDemand)],
            [true, false]
        );
        assert_eq!(until, now + HOLD);
    }
}
