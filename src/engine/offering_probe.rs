//! Which offerings a launch asks for: one launch tries each offering that was refused lately, and
//! the others follow once it has succeeded. It must not know how launches are planned.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::to_buy;
use crate::engine::in_flight::ClaimProgress;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::ClaimId;
use crate::state::unavailable_offerings::Access;

/// A launch waits this long at most for another launch that tries an offering. EC2 answers within
/// seconds.
const TRIED_MAX: SignedDuration = SignedDuration::from_secs(20);

impl Engine {
    /// Decides whether a claim may be launched now, and removes the offerings that its launch must
    /// not ask for: those that are held down by now, and those that another launch is trying.
    /// The claim was planned for its first offering, which is the cheapest. If another launch tries
    /// this one, the claim waits; if it is held down, the engine plans the pods of the claim anew.
    pub(super) fn narrow(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
        if self.state.holds.is_empty() {
            return true;
        }
        let class = claim.record.node_class.clone();
        let tries = |own: &ClaimId| own != id && self.is_trying(own);
        let access = |own| self.state.holds.access(class.as_ref(), own, now, tries);
        let access: Vec<Access> = claim.offerings.iter().map(access).collect();
        let waits = match access.first() {
            None => return true,
            Some(Access::Held) => {
                let (claim, next) = (id.clone(), None);
                self.report(Report::ClaimRenewed { claim, next });
                self.forget_claim(id);
                return false;
            }
            Some(own) => *own == Access::Tried,
        };
        let until = claim.since.checked_add(TRIED_MAX).unwrap_or(now);
        if waits && now < until {
            self.wake_at(until, "another launch tries an offering for too long");
            return false;
        }
        let pool = self.state.cluster.pool(claim.record.pool.as_str());
        // EC2 could refuse a launch that has fewer types than the pool asks for.
        let is_varied = pool.is_some_and(|own| own.is_varied());
        let is_asked = |own: &Access| match own {
            Access::Free => true,
            Access::Tried => waits || is_varied,
            Access::Held => is_varied,
        };
        let Some(claim) = self.state.ledger.claims.get_mut(id) else {
            return false;
        };
        let mut access = access.iter();
        claim
            .offerings
            .retain(|_| access.next().is_some_and(is_asked));
        for own in to_buy(&claim.offerings, is_varied) {
            self.state.holds.asked(class.as_ref(), own, id, now);
        }
        true
    }

    /// Whether a launch of the claim is on its way, or the fleet has been asked for it.
    fn is_trying(&self, id: &ClaimId) -> bool {
        let claim = self.state.ledger.claims.get(id);
        claim.is_some_and(|own| match own.phase {
            ClaimPhase::Planned => self.works.get(id).is_some_and(ClaimProgress::is_asked_for),
            phase => phase == ClaimPhase::Launching,
        })
    }
}
