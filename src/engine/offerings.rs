//! Which offerings a launch asks for: of those that were refused lately, one launch tries each, and
//! the others follow once it has succeeded. It must not know how launches are planned.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::to_buy;
use crate::engine::report::Report;
use crate::engine::work::Step;
use crate::model::claim::Phase;
use crate::model::id::ClaimId;
use crate::state::holds::Access;

/// A launch waits for so long at most for another that tries an offering: an answer takes seconds.
const TRIED_MAX: SignedDuration = SignedDuration::from_secs(20);

impl Engine {
    /// Decides whether a claim may be launched now, and takes the offerings from it that its launch
    /// is not to ask for: those that are held down by now, and those that another launch is trying.
    /// The first of its offerings is the cheapest, for which it was planned: if another launch
    /// tries that one it waits, and if that one is held down its pods are planned anew.
    pub(super) fn narrow(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.state.ledger.claims.get(id) else {
            return false;
        };
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
        // With fewer types it might be refused for their number.
        let is_varied = pool.is_some_and(|own| own.is_varied());
        let is_asked = |own: &Access| match own {
            Access::Free => true,
            Access::Tried => waits || is_varied,
            Access::Held => is_varied,
        };
        let asked = claim.offerings.iter().zip(&access);
        let asked = asked.filter(|(_, access)| is_asked(access));
        let asked: Vec<_> = asked.map(|(own, _)| own.clone()).collect();
        for own in to_buy(&asked, is_varied) {
            self.state.holds.asked(class.as_ref(), own, id, now);
        }
        if let Some(claim) = self.state.ledger.claims.get_mut(id) {
            claim.offerings = asked;
        }
        true
    }

    /// Whether a claim's launch is on its way, or the fleet has been asked for it.
    fn is_trying(&self, id: &ClaimId) -> bool {
        let claim = self.state.ledger.claims.get(id);
        let asks = || {
            let work = self.works.get(id);
            work.is_some_and(|own| own.granted || matches!(own.step, Some((_, Step::Ask))))
        };
        claim.is_some_and(|own| match own.phase {
            Phase::Planned => asks(),
            phase => phase == Phase::Launching,
        })
    }
}
