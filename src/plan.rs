//! Decisions as actions: what to launch and what to retire, with a report of all that stays.
//! It must not know how an action is carried out; nothing is left to decide there.

pub mod audit;

pub mod reasons;

pub mod render;

pub mod explain;

use jiff::Timestamp;

use crate::disrupt::emptiness::empty_nodes;
pub use crate::disrupt::emptiness::next_due;
use crate::disrupt::verdict::Kept;
use crate::model::id::PodKey;
use crate::model::pool::Reason;
use crate::solve::{NewClaim, Unplaced, solve};
use crate::state::snapshot::{Candidate, Host, Roster, Snapshot};

/// A node that shall leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retire {
    /// The node.
    pub candidate: Candidate,
    /// Why.
    pub reason: Reason,
}

/// What shall be done about one cluster now, and why nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a plan does nothing unless it is carried out"]
pub struct Plan {
    /// Nodes to be made. Their offerings stand in the order of planning, cheapest first as overlays
    /// have it, with the prices that are paid.
    pub launches: Vec<NewClaim>,
    /// Pods that existing hosts will take.
    pub placed: Vec<(Host, Vec<PodKey>)>,
    /// Pods with no answer, and why.
    pub unplaced: Vec<Unplaced>,
    /// Nodes that shall leave.
    pub retire: Vec<Retire>,
    /// Nodes that stay, and why.
    pub kept: Vec<Kept>,
    /// What the audit found wrong with the plan; such actions are left out of it.
    pub findings: Vec<String>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty() && self.retire.is_empty()
    }
}

/// Capacity for the pods that wait.
pub fn provision(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let solution = solve(snapshot, now);
    let mut launches = solution.claims;
    for (offering, price) in launches.iter_mut().flat_map(|own| &mut own.offerings) {
        // Overlays count where nodes are planned, not in what is said of their cost.
        if let Some(listed) = snapshot.catalog.offering(offering) {
            *price = listed.price;
        }
    }
    let plan = Plan {
        launches,
        placed: solution.placed,
        unplaced: solution.unplaced,
        ..Plan::default()
    };
    audit::audit(plan, snapshot)
}

/// Nodes that shall leave because they are empty.
pub fn sweep_empty(roster: &Roster<'_>, now: Timestamp) -> Plan {
    let (due, kept) = empty_nodes(roster, now);
    let retire = due
        .into_iter()
        .map(|candidate| Retire {
            candidate,
            reason: Reason::Empty,
        })
        .collect();
    Plan {
        retire,
        kept,
        ..Plan::default()
    }
}

/// Both at once, for a plan that is shown and not carried out. A node that pending pods will use is
/// not retired by the same plan.
pub fn whole(snapshot: &Snapshot<'_>, roster: &Roster<'_>, now: Timestamp) -> Plan {
    let plan = provision(snapshot, now);
    let Plan {
        mut retire, kept, ..
    } = sweep_empty(roster, now);
    retire.retain(|own| {
        let host = Host::Node(own.candidate.node.clone());
        !plan.placed.iter().any(|(placed, _)| *placed == host)
    });
    Plan {
        retire,
        kept,
        ..plan
    }
}
