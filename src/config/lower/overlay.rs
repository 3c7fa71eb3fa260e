//! Converts overlays, and finds conflicts between them.

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::quantities::{has_quantities, refuse_names};
use crate::config::lower::requirement::RequirementOwner;
use crate::config::lower::{
    check_name, cluster_patterns, has_matching_name, pool, report_exclusive, requirement,
};
use crate::config::report::error_at;
use crate::config::source::Span;
use crate::config::syntax::PathStep;
use crate::config::value::did_you_mean;
use crate::model::cluster::Cluster;
use crate::model::instance::Price;
use crate::model::labels::{POOL, normalized_key};
use crate::model::overlay::{Overlay, PriceAdjustment};

/// An overlay and its clusters.
pub(super) struct OverlaySpec {
    overlay: Overlay,
    /// Names of clusters, or patterns.
    pub(super) clusters: Vec<String>,
    pub(super) section: DecodedBlock,
}

/// Resources that an overlay cannot set, and the reason. Source: spec/scheduling.md §3.4.
const MEASURED: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "pods", "nodes"];

pub(super) fn lower_overlays(reader: &Decoder<'_>, pools: &[pool::PoolSpec]) -> Vec<OverlaySpec> {
    let sections = reader.decode_sections("overlay");
    sections.into_iter().map(|section| lower_overlay(section, pools)).collect()
}

/// Sets the overlays of a cluster, in the order in which they are applied.
pub(super) fn assign_overlays(drafts: &[OverlaySpec], cluster: &mut Cluster) {
    let mut overlays: Vec<Overlay> = drafts
        .iter()
        .filter(|draft| has_matching_name(&draft.clusters, cluster))
        .map(|draft| draft.overlay.clone())
        .collect();
    overlays.sort_by(Overlay::application_order);
    cluster.overlays = overlays;
}

fn lower_overlay(section: DecodedBlock, pools: &[pool::PoolSpec]) -> OverlaySpec {
    let name = section.label();
    check_name(&section, name, "an overlay");
    if section.block("require").is_none() {
        let detail = "The overlay does not select any instance types.";
        error_at(ProblemCode::MissingBlock, section.header, detail)
            .label("require is missing")
            .help(
                "write require \"KEY\" { in = […] }; to select all of them, write require \
                                  \"kubernetes.io/os\" { exists = true }",
            )
            .report(&section);
    }
    check_pools(&section, pools);
    let absolute = section.number("price").and_then(Price::new);
    let price = absolute.map(PriceAdjustment::Absolute);
    check_effect(&section);
    let why = "an overlay can only set extended resources";
    refuse_names(&section, "capacity", &MEASURED, why);
    let capacity = section.quantities("capacity").iter().cloned();
    let overlay = Overlay {
        name: name.to_owned(),
        weight: section.count("weight").unwrap_or_default(),
        requirements: requirement::lower_requirements(&section, RequirementOwner::Overlay),
        price: price.or(section.price_adjustment("price_adjustment")),
        capacity: capacity.collect(),
    };
    OverlaySpec { overlay, clusters: cluster_patterns(&section), section }
}

/// Checks that the overlay changes at least one value, and sets the price only once.
fn check_effect(section: &DecodedBlock) {
    report_exclusive(section, "price", "price_adjustment");
    if !section.is_any_set(&["price", "price_adjustment"]) && !has_quantities(section, "capacity") {
        let detail = "The overlay changes nothing.";
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .help("write one of price, price_adjustment and capacity")
            .report(section);
    }
}

/// Reports pools that do not exist.
fn check_pools(section: &DecodedBlock, pools: &[pool::PoolSpec]) {
    let requirements = section.blocks("require");
    for inner in requirements.filter(|inner| normalized_key(inner.label()) == POOL) {
        for argument in ["in", "not_in"] {
            let names = inner.texts(argument).unwrap_or_default().iter();
            for (index, name) in names.enumerate() {
                let known = pools.iter().map(|draft| draft.pool.name.as_str());
                if known.clone().any(|pool| pool == name) {
                    continue;
                }
                let span = inner.inner_span(argument, PathStep::Index(index));
                let detail = format!("There is no pool named {name:?}.");
                let finding = error_at(ProblemCode::UnknownReference, span, detail);
                finding.maybe_help(did_you_mean(name, known)).report(inner);
            }
        }
    }
}

/// Reports overlays with the same weight that set the same value. Conflicts that depend on the
/// catalog are resolved by the order of application.
pub(super) fn check_conflicts(drafts: &[OverlaySpec], clusters: &[&Cluster]) {
    for (index, draft) in drafts.iter().enumerate() {
        for other in &drafts[..index] {
            let meet = draft.overlay.weight == other.overlay.weight
                && draft.overlay.overlaps(&other.overlay)
                && clusters.iter().any(|cluster| {
                    has_matching_name(&draft.clusters, cluster)
                        && has_matching_name(&other.clusters, cluster)
                });
            let clash = conflicting_value(draft, other).filter(|_| meet);
            // Two blocks with the same label are already reported.
            let Some((value, span, before)) =
                clash.filter(|_| draft.overlay.name != other.overlay.name)
            else {
                continue;
            };
            let detail = format!(
                "The overlays {:?} and {:?} have the same weight ({}), and both set {value} of the \
                 same instance types.",
                other.overlay.name, draft.overlay.name, draft.overlay.weight
            );
            error_at(ProblemCode::Conflict, span, detail)
                .also(before, "")
                .help("give a higher weight to the overlay that takes precedence")
                .report(&draft.section);
        }
    }
}

/// The value that both overlays set, with its spans.
fn conflicting_value(one: &OverlaySpec, other: &OverlaySpec) -> Option<(String, Span, Span)> {
    if one.overlay.price.is_some() && other.overlay.price.is_some() {
        let spans = (price_span(one)?, price_span(other)?);
        return Some(("the price".to_owned(), spans.0, spans.1));
    }
    let other_capacity = &other.overlay.capacity;
    let mut names = one.overlay.capacity.keys();
    let name = names.find(|name| other_capacity.contains_key(*name))?;
    let [span, other_span] = [one, other].map(|draft| {
        let step = PathStep::KeyItself(name.clone());
        draft.section.inner_span("capacity", step)
    });
    Some((format!("{name:?}"), span, other_span))
}

/// The span of the name of the argument that sets the price.
fn price_span(draft: &OverlaySpec) -> Option<Span> {
    ["price", "price_adjustment"]
        .iter()
        .find_map(|name| draft.section.get(name))
        .map(|read| read.name_span)
}
