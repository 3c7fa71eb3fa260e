//! Converts the scheduler block: batching and planning.

use std::collections::BTreeSet;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::kubernetes_names::label_key_fault;
use crate::config::report::error_at;
use crate::config::schema::duration_text;
use crate::config::source::Span;
use crate::config::syntax::PathStep;
use crate::model::affinity::TopologySpread;
use crate::model::cluster::{Batching, MinValuesPolicy, PreferencePolicy, Scheduling};
use crate::model::instance::Price;

/// The scheduler of pods that do not name a scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

pub(super) fn lower_scheduler(reader: &Decoder<'_>) -> (Batching, Scheduling) {
    let sections = reader.decode_sections("scheduler");
    match sections.first() {
        Some(section) => (batching(section), scheduling(section)),
        None => (Batching::default(), Scheduling::default()),
    }
}

fn batching(section: &DecodedBlock) -> Batching {
    let default = Batching::default();
    let batching = Batching {
        idle: section.duration("batch_idle").unwrap_or(default.idle),
        max: section.duration("batch_max").unwrap_or(default.max),
    };
    if batching.idle > batching.max {
        let [idle, max] = [batching.idle, batching.max]
            .map(|duration| duration_text(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)));
        let detail = format!("batch_idle is {idle}, which is longer than batch_max ({max}).");
        let (one, other) = match section.get("batch_idle") {
            Some(_) => ("batch_idle", "batch_max"),
            None => ("batch_max", "batch_idle"),
        };
        let mut finding = error_at(ProblemCode::OutOfRange, section.value_span(one), detail);
        if section.get(other).is_some() {
            finding = finding.also(section.value_span(other), "");
        }
        finding.report(section);
    }
    batching
}

fn scheduling(section: &DecodedBlock) -> Scheduling {
    let default = Scheduling::default();
    let node_overhead_price = section.number("node_overhead_price").and_then(Price::new);
    // The schema keeps the ratio between 1 and 100.
    let ratio =
        section.number("alternative_price_ratio").map(|ratio| (ratio * 100.0).round() as u32);
    let cutoff = section.whole_number("priority_cutoff");
    Scheduling {
        preferences: match section.text("preference_policy") {
            Some("ignore") => PreferencePolicy::Ignore,
            _ => PreferencePolicy::Respect,
        },
        min_values: match section.text("min_values_policy") {
            Some("best_effort") => MinValuesPolicy::BestEffort,
            _ => MinValuesPolicy::Strict,
        },
        node_overhead_price: node_overhead_price.unwrap_or(default.node_overhead_price),
        max_launch_options: section
            .count("max_launch_options")
            .unwrap_or(default.max_launch_options),
        alternative_price_percent: ratio.unwrap_or(default.alternative_price_percent),
        priority_cutoff: cutoff.and_then(|cutoff| i32::try_from(cutoff).ok()),
        schedulers: schedulers(section).unwrap_or(default.schedulers),
        default_spread: default_spread(section),
    }
}

fn schedulers(section: &DecodedBlock) -> Option<BTreeSet<String>> {
    let names = section.texts("schedulers")?;
    let mut invalid: Vec<(Span, &str)> = Vec::new();
    if names.is_empty() {
        let detail = "schedulers must not be empty: Outrigger would not plan any pods.";
        invalid.push((section.value_span("schedulers"), detail));
    }
    let mut all = BTreeSet::new();
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            let span = section.inner_span("schedulers", PathStep::Index(index));
            invalid.push((span, "The name of a scheduler must not be empty."));
        }
        if name == DEFAULT_SCHEDULER {
            all.insert(String::new());
        }
        all.insert(name.clone());
    }
    for (span, detail) in invalid {
        error_at(ProblemCode::InvalidValue, span, detail)
            .help(format!("write schedulers = [{DEFAULT_SCHEDULER:?}]"))
            .report(section);
    }
    Some(all)
}

/// The topology spread of pods that declare no topology spread. The rules are those of
/// kube-scheduler for `defaultConstraints`. The schema allows no selector.
fn default_spread(section: &DecodedBlock) -> Vec<TopologySpread> {
    let mut all: Vec<(TopologySpread, Span)> = Vec::new();
    for inner in section.blocks("default_spread") {
        let key = inner.label();
        if let Some(why) = label_key_fault(key).filter(|_| !key.is_empty()) {
            let detail = format!("{key:?} is not a valid topology key. {why}");
            let code = ProblemCode::InvalidLabel;
            inner.error(code, inner.label_span(), detail);
        }
        let affinity_policy = inner.text("node_affinity_policy");
        let (Some(max_skew), Some(unsatisfiable)) =
            (inner.count("max_skew"), inner.text("when_unsatisfiable"))
        else {
            continue;
        };
        let spread = TopologySpread {
            selector: None,
            topology_key: key.to_owned(),
            max_skew,
            min_domains: inner.count("min_domains").unwrap_or(1),
            honors_affinity: affinity_policy.is_none_or(|value| value == "Honor"),
            honors_taints: inner.text("node_taints_policy") == Some("Honor"),
            is_hard: unsatisfiable == "DoNotSchedule",
        };
        if let Some(min_domains) = inner.get("min_domains").filter(|_| !spread.is_hard) {
            let detail = "min_domains requires when_unsatisfiable = \"DoNotSchedule\".";
            error_at(ProblemCode::Conflict, min_domains.name_span, detail)
                .also(inner.value_span("when_unsatisfiable"), "this is only a preference")
                .report(inner);
        }
        if let Some((_, before)) = all
            .iter()
            .find(|(other, _)| other.topology_key == key && other.is_hard == spread.is_hard)
        {
            let detail = format!("Two blocks have the topology key {key:?} and {unsatisfiable}.");
            error_at(ProblemCode::DuplicateBlock, inner.header, detail)
                .duplicate_of(*before)
                .report(inner);
        }
        all.push((spread, inner.header));
    }
    // The order of files and blocks has no effect.
    let mut all: Vec<TopologySpread> = all.into_iter().map(|(spread, _)| spread).collect();
    all.sort();
    all
}
