//! Names in output: suggestions for an unknown name, and the instance types of a claim.

use std::fmt::Display;

use crate::scheduling::NewNodeClaim;
use crate::scheduling::rejection::bounded_text;

/// Maximum number and maximum edit distance of suggestions for an unknown name. Longer names are
/// not compared, because the time for a comparison is the product of the two lengths.
const NAMES: usize = 5;
const DISTANCE: usize = 3;
const LENGTH_MAX: usize = 253;

/// Returns the edit distance of two similar names, or `None` if they differ too much.
pub(super) fn name_distance(known: &str, name: &str) -> Option<usize> {
    if known.len().max(name.len()) > LENGTH_MAX {
        return None;
    }
    if known.starts_with(name) && !name.is_empty() {
        return Some(DISTANCE);
    }
    Some(strsim::osa_distance(known, name)).filter(|distance| *distance <= DISTANCE)
}

/// Returns the closest names in the order of their distance.
pub(super) fn closest_names<T: Display + Ord>(
    names: impl Iterator<Item = (usize, T)>,
) -> Vec<String> {
    let mut names: Vec<(usize, T)> = names.collect();
    names.sort_unstable();
    let names = names.into_iter().take(NAMES);
    names.map(|(_, name)| bounded_text(name)).collect()
}

/// Returns the instance types of a claim in launch order.
pub(super) fn instance_type_names(claim: &NewNodeClaim) -> Vec<&str> {
    let mut types: Vec<&str> = Vec::new();
    for (offering, _) in &claim.offerings {
        let name = offering.instance_type.as_str();
        if !types.contains(&name) {
            types.push(name);
        }
    }
    types
}
