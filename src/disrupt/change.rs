//! What a configuration by itself makes due to leave, whatever becomes of it then.
//! It must not know which configuration was in force before.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::disrupt::drifted::Models;
use crate::disrupt::surplus::surplus;
use crate::model::id::NodeName;
use crate::state::roster::Roster;

/// Nodes that drift by what the configuration says, whose pool it does not name, or that are more
/// than it wants. What the provider finds for it does not count.
pub fn due<'a>(roster: &'a Roster<'a>, now: Timestamp) -> BTreeSet<NodeName> {
    let models = Models::new(roster);
    let candidates = roster.candidates.iter();
    let drifted = candidates.filter(|own| {
        let cause = models.cause(own, now);
        cause.is_some_and(|own| own.is_configured())
    });
    let (surplus, _) = surplus(roster);
    let all = drifted.chain(surplus);
    all.map(|own| own.node.name.clone()).collect()
}
