//! Counts the claims of a plan in the topology state, and checks the number of pods.

use super::Scheduler;
use crate::scheduling::packing::daemon_counts::count_daemons;
use crate::scheduling::packing::initial_topology::add_claim;

impl<'p> Scheduler<'_, 'p, '_> {
    /// Adds new claims and their pods to the topology state.
    pub(super) fn count_claims(&mut self) {
        if self.context.topology.tallies.is_empty() {
            return;
        }
        for opened in self.packed.opened.iter().skip(self.counted) {
            let items = self.packed.item_offerings(&self.offerings.rows);
            let site = add_claim(self.context, items, opened, &mut self.board);
            self.board.open_domains(site);
            count_daemons(self.context, items, opened, site, &mut self.board);
            // Pods without topology rules are bound last.
            let groups = &self.packed.lots;
            let parts = opened.claim.parts.iter();
            for (group, pods) in parts.filter(|part| groups[part.0].cell.is_some()) {
                let pods = u32::try_from(*pods).unwrap_or(u32::MAX);
                self.board.bind_pods(groups[*group].kind, site, pods);
            }
        }
        self.counted = self.packed.opened.len();
    }

    /// Checks that every pod is counted once.
    pub(super) fn check_counts(&self) {
        let mut count = self.packed.left.clone();
        for turn in &self.packed.placed {
            count[turn.class] += turn.pods;
        }
        let opened = self.packed.opened.iter();
        for (group, pods) in opened.flat_map(|opened| &opened.claim.parts) {
            count[self.packed.lots[*group].class] += pods;
        }
        assert!(count == self.context.problem.pods_per_class(), "every pod is counted once");
    }
}
