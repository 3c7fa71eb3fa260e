//! Converts an autoscaler with its groups to HCL, and reports dropped fields.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;
use thiserror::Error;

use super::cluster::{ClusterLocation, parse_bounds};
use super::deployment::{Deployment, ProgramError};
use super::flags::FlagValues;
pub use super::node_class::SECRET_NOTE;
use super::node_groups::{GroupsError, NodeGroup};
use super::pool::{ImportContext, cluster_of, has_taint};
use super::{cluster, command_line, deployment, flags, node_groups, pool};
use crate::config::SourceFile;
use crate::config::kubernetes_names::name_fault;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::scalar_text;
use crate::migrate::karpenter::import::{ConvertedBlock, finish_import};
pub use crate::migrate::karpenter::import::{ImportError, ImportOptions, Imported};
use crate::migrate::manifests;

/// The maximum weight of a pool.
const WEIGHT_MAX: i64 = 100;
/// Maximum number of priority patterns, and of characters in a pattern.
const PATTERNS_MAX: usize = 1000;
const PATTERN_LENGTH_MAX: usize = 1000;

/// Why an import fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AutoscalerError {
    /// The autoscaler was not found.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The files with its groups cannot be read.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// The result is not a valid configuration.
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// Converts an autoscaler, given as its objects or flags, and its groups, given as output of the
/// AWS CLI, to HCL.
///
/// # Errors
///
/// Fails unless the input has one autoscaler, groups are AWS CLI output and pool names are unique.
pub fn import(
    autoscaler: &SourceFile,
    answers: &[SourceFile],
    options: &ImportOptions,
) -> Result<Imported, AutoscalerError> {
    let program = deployment::find_autoscaler(autoscaler)?;
    let export = node_groups::read_export(answers)?;
    let rows: BTreeMap<&str, bool> =
        flags::flag_rows().map(|row| (row.name, !row.is_switch)).collect();
    let (given, positional) =
        command_line::parse_flags(&program.words, |name| rows.get(name).copied());
    let (flags, mut losses, mut notes) = flags::classify_flags(&program.of, given);
    for argument in positional {
        let word: String = argument.chars().take(PATTERN_LENGTH_MAX).collect();
        losses.add(word, "not a flag");
    }
    let sizes = group_sizes(&flags, &mut losses);
    let specs = discovery_specs(&flags, &mut losses);
    let named = !sizes.is_empty() || !flags.values_of("node-group-auto-discovery").is_empty();
    let (selected, others): (Vec<NodeGroup>, Vec<NodeGroup>) =
        export.groups.into_iter().partition(|group| {
            !named
                || sizes.contains_key(&group.name)
                || specs.iter().any(|spec| spec.selects_group(group))
        });
    if selected.is_empty() && sizes.is_empty() {
        let why = "the input has no groups; pass the output of aws autoscaling \
                   describe-auto-scaling-groups with --asg";
        losses.add_missing("groups", why);
    }
    let place = cluster_location(&flags, &program, &selected, &specs, options);
    let clusters = match (options.clusters.as_slice(), &place.name) {
        ([], Some(name)) => vec![name.clone()],
        (given, _) => given.to_vec(),
    };
    convert_expanders(&flags, &mut losses, &mut notes);
    let names: Vec<&str> = selected.iter().map(|group| group.name.as_str()).collect();
    let weights = priority_weights(&flags, &program, &names, &mut losses);
    let startup = startup_taint_keys(&flags, &selected, &mut losses);
    check_provider(&flags, &mut losses);
    let context = ImportContext {
        flags: &flags,
        clusters: &clusters,
        templates: &export.templates,
        startup: &startup,
        sizes: &sizes,
        weights: &weights,
    };
    let unknown: Vec<ConvertedBlock> = sizes
        .keys()
        .filter(|name| !names.contains(&name.as_str()))
        .map(|name| pool::unknown_pool(name, &context))
        .collect();
    let mut built =
        vec![cluster::cluster_block(&flags, &place, losses), cluster::scheduler_block(&flags)];
    for group in selected {
        built.extend(pool::build_pool(group, &context));
    }
    built.extend(unknown);
    let mut imported = finish_import(built, &clusters, Vec::new())?;
    imported.skipped = program.skipped.into_iter().collect();
    if !others.is_empty() {
        let kind = "AutoScalingGroup".to_owned();
        imported.skipped.push((kind, others.len()));
    }
    imported.notes = notes;
    Ok(imported)
}

/// Parses the tags by which groups are discovered. A group must have all of these tags.
#[derive(Debug)]
struct AutoDiscoverySpec {
    tags: Vec<(String, Option<String>)>,
}

impl AutoDiscoverySpec {
    fn selects_group(&self, group: &NodeGroup) -> bool {
        self.tags.iter().all(|(key, value)| {
            group.tag_value(key).is_some_and(|tag| value.as_ref().is_none_or(|value| tag == value))
        })
    }
}

fn discovery_specs(flags: &FlagValues, losses: &mut DroppedFields) -> Vec<AutoDiscoverySpec> {
    let mut specs = Vec::new();
    for list in flags.values_of("node-group-auto-discovery") {
        let Some(tags) = list.strip_prefix("asg:tag=").filter(|tags| !tags.is_empty()) else {
            let why = "the format is not asg:tag=KEY,KEY=VALUE; only AWS Auto Scaling groups are \
                       supported";
            losses.add(format!("--node-group-auto-discovery={list}"), why);
            continue;
        };
        let tags = tags.split(',').map(|tag| match tag.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (tag.to_owned(), None),
        });
        specs.push(AutoDiscoverySpec { tags: tags.collect() });
    }
    specs
}

/// Parses the minimum and maximum sizes of the named groups.
fn group_sizes(flags: &FlagValues, losses: &mut DroppedFields) -> BTreeMap<String, (i64, i64)> {
    let mut all = BTreeMap::new();
    for list in flags.values_of("nodes") {
        let parts = list.rsplit_once(':').filter(|(_, name)| !name.is_empty());
        match parts.and_then(|(size, name)| Some((parse_bounds(size).ok()?, name))) {
            Some((size, name)) => {
                all.insert(name.to_owned(), size);
            }
            None => losses.add(format!("--nodes={list}"), "the format is not MIN:MAX:NAME"),
        }
    }
    all
}

/// Determines the name and region of the cluster from the first source with a valid name.
fn cluster_location(
    flags: &FlagValues,
    program: &Deployment,
    groups: &[NodeGroup],
    specs: &[AutoDiscoverySpec],
    options: &ImportOptions,
) -> ClusterLocation {
    let given = match options.clusters.as_slice() {
        [name] if !name.contains('*') => Some(name.as_str()),
        _ => None,
    };
    let eks = groups.iter().find_map(|group| {
        let tagged = ["eks:cluster-name", "alpha.eksctl.io/cluster-name"];
        tagged.iter().find_map(|key| group.tag_value(key))
    });
    let searched = specs.iter().flat_map(|spec| &spec.tags);
    let searched = searched.filter_map(|(key, _)| cluster_of(key));
    let tagged = groups.iter().flat_map(|group| &group.tags);
    let tagged = tagged.filter_map(|tag| cluster_of(&tag.key));

    let mut names = given
        .into_iter()
        .chain(flags.value_of("cluster-name"))
        .chain(searched)
        .chain(eks)
        .chain(tagged);
    let arns = groups.iter().filter_map(|group| {
        let arn = group.fields.get("AutoScalingGroupARN");
        let arn = arn.or_else(|| group.managed_field("nodegroupArn"))?;
        arn.as_str()?.split(':').nth(3)
    });
    let mut regions = program.region.as_deref().into_iter().chain(arns);
    let name = names.find(|name| name_fault(name).is_none());
    let region = regions.find(|region| name_fault(region).is_none());
    ClusterLocation {
        name: name.map(str::to_owned),
        region: region.map(str::to_owned),
        eks: eks.map(str::to_owned),
    }
}

/// Converts the expanders. Outrigger always chooses by cost.
fn convert_expanders(flags: &FlagValues, losses: &mut DroppedFields, notes: &mut Vec<String>) {
    let Some(all) = flags.value_of("expander") else {
        return;
    };
    for (index, expander) in all.split(',').map(str::trim).enumerate() {
        let path = format!("--expander={expander}");
        let why = match expander {
            "priority" if index == 0 => continue,
            "priority" => {
                "it only chooses among the results of the expanders before it; a weight would \
                 override the cost"
            }
            "least-waste" | "most-pods" | "price" | "random" => {
                let of = &flags.of;
                let why = "Outrigger launches the cheapest type of all pools";
                notes.push(format!("{of}: not needed {path} ({why})"));
                continue;
            }
            "least-nodes" => {
                "node_overhead_price in the scheduler block results in fewer, larger nodes"
            }
            "grpc" => "external expanders are not supported; use weight and overlay",
            _ => "unknown expander",
        };
        losses.add(path, why);
    }
}

/// Converts the priorities of the expander `priority` to weights.
fn priority_weights(
    flags: &FlagValues,
    program: &Deployment,
    names: &[&str],
    losses: &mut DroppedFields,
) -> BTreeMap<String, i64> {
    let expander = flags.value_of("expander").unwrap_or_default();
    let first = expander.split(',').next();
    if first.is_none_or(|name| name.trim() != "priority") {
        return BTreeMap::new();
    }
    let Some(priorities) = &program.priorities else {
        let why = "the ConfigMap cluster-autoscaler-priority-expander is not part of the input; \
                   add it, or set weight in pools";
        losses.add_missing("priorities", why);
        return BTreeMap::new();
    };
    let patterns = priority_patterns(priorities, losses);
    let mut best: BTreeMap<String, i64> = BTreeMap::new();
    for name in names {
        let found = patterns.iter().filter(|(_, pattern)| pattern.is_match(name));
        // Groups that match no pattern have no weight and are last.
        if let Some(priority) = found.map(|(priority, _)| *priority).max() {
            best.insert((*name).to_owned(), priority);
        }
    }
    let mut ranks: Vec<i64> = best.values().copied().collect();
    ranks.sort_unstable();
    ranks.dedup();
    // If the priorities are not valid weights, only their order is used.
    if ranks.iter().all(|rank| (1..=WEIGHT_MAX).contains(rank)) {
        return best;
    }
    for priority in best.values_mut() {
        let rank = ranks.partition_point(|rank| rank < priority) + 1;
        *priority = i64::try_from(rank).unwrap_or(WEIGHT_MAX).min(WEIGHT_MAX);
    }
    best
}

/// Parses the patterns of names with their priorities.
fn priority_patterns(priorities: &str, losses: &mut DroppedFields) -> Vec<(i64, Regex)> {
    let path = "ConfigMap/cluster-autoscaler-priority-expander";
    let parsed = manifests::parse(priorities);
    let Some(Value::Object(all)) = parsed.ok().and_then(|all| all.into_iter().next()) else {
        losses.add(path, "the priorities are not YAML with a list of patterns for each number");
        return Vec::new();
    };
    let mut patterns = Vec::new();
    for (priority, list) in &all {
        let entry_path = format!("{path}: {priority}");
        let (Ok(priority), Value::Array(list)) = (priority.parse::<i64>(), list) else {
            losses.add(entry_path, "the entry is not a number with a list of patterns");
            continue;
        };
        for pattern in list.iter().filter_map(scalar_text) {
            let fits = pattern.len() <= PATTERN_LENGTH_MAX && patterns.len() < PATTERNS_MAX;
            match Regex::new(&pattern).ok().filter(|_| fits) {
                Some(regex) => patterns.push((priority, regex)),
                None => {
                    let pattern: String = pattern.chars().take(PATTERN_LENGTH_MAX).collect();
                    losses.add(format!("{entry_path}: {pattern}"), "invalid pattern");
                }
            }
        }
    }
    patterns
}

/// Returns the keys of startup taints. Drops a key that no group has: its effect is unknown.
fn startup_taint_keys(
    flags: &FlagValues,
    groups: &[NodeGroup],
    losses: &mut DroppedFields,
) -> Vec<String> {
    let mut keys = Vec::new();
    for flag in ["startup-taint", "ignore-taint"] {
        for key in flags.values_of(flag) {
            if !groups.iter().any(|group| has_taint(group, key)) {
                let why = format!(
                    "no group has its effect; add startup_taint {key:?} to the pools whose \
                     nodes start with it"
                );
                flags.drop_flag(format!("--{flag}={key}"), why, losses);
            }
            keys.push(key.clone());
        }
    }
    keys
}

/// Drops a cloud provider other than AWS.
fn check_provider(flags: &FlagValues, losses: &mut DroppedFields) {
    if let Some(text) = flags.value_of("cloud-provider").filter(|text| *text != "aws") {
        let why = "only AWS groups are imported; use an exec block for other clouds";
        losses.add(format!("--cloud-provider={text}"), why);
    }
}
