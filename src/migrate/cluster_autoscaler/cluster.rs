//! Converts the cluster flags and the batching flags to a `cluster` and a `scheduler` block.

use serde_json::{Map, Value};

use super::flags::{FlagError, FlagValues};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::format_units::format_duration;
use crate::migrate::hcl::HclBody;
use crate::migrate::karpenter::import::{ConvertedBlock, ItemNoun};

/// The placeholder for the name of the cluster.
const NAMELESS: &str = "NAME";

/// The default of `--expendable-pods-priority-cutoff`. Source: Cluster Autoscaler,
/// `pkg/config/flags`.
const CUTOFF: i64 = -10;
/// The defaults of parallel scale-down, for all nodes and for nodes with pods. Source: as above.
const LEAVING: i64 = 10;
const DRAINED: i64 = 1;

/// Data on the cluster from sources other than flags.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterLocation {
    pub(super) name: Option<String>,
    pub(super) region: Option<String>,
    /// The name of the cluster in EKS, if it is an EKS cluster.
    pub(super) eks: Option<String>,
}

/// Builds the cluster block, with the dropped flags that belong to no pool.
pub(super) fn cluster_block(
    flags: &FlagValues,
    location: &ClusterLocation,
    mut losses: DroppedFields,
) -> ConvertedBlock {
    let mut body = HclBody::default();
    body.add_comment("The cluster is only observed until mode is \"manage\".");
    match &location.region {
        Some(region) => body.set("region", region.as_str()),
        None => losses.add_missing("region", "not found in AWS_REGION or in the ARN of a group"),
    }
    let limits = cluster_limits(flags, &mut losses);
    body.set_unless_empty("limits", Value::Object(limits));
    if let Some(unready) = flags.number("max-total-unready-percentage", &mut losses) {
        // A percentage above 100 has no effect.
        body.set("max_unready", format!("{:.0}%", unready.min(100.0)));
    }
    match (&location.eks, &location.name) {
        (Some(eks), name) => {
            let mut inner = HclBody::default();
            if Some(eks) != name.as_ref() {
                inner.set("name", eks.as_str());
            }
            body.add_block("eks", None, inner);
        }
        (None, _) => {
            let why = "the input has no connection to the API; add one of them";
            losses.add_missing("eks or kubeconfig", why);
        }
    }
    let disruption = cluster_disruption(flags, &mut losses);
    body.add_block("disruption", None, disruption);
    if location.name.is_none() {
        losses.add_missing("name", "the input has no cluster name; use --cluster");
    }
    let label = location.name.as_deref().unwrap_or(NAMELESS).to_owned();
    ConvertedBlock {
        left_out: location.name.is_none() || location.region.is_none(),
        ..ConvertedBlock::new("cluster", Some(label), body, losses, ItemNoun::Ours)
    }
}

/// Converts the limits of the cluster.
fn cluster_limits(flags: &FlagValues, losses: &mut DroppedFields) -> Map<String, Value> {
    let mut limits = Map::new();
    let nodes = flags.count("max-nodes-total", losses);
    if let Some(nodes) = nodes.filter(|node| *node > 0) {
        limits.insert("nodes".to_owned(), Value::from(nodes));
    }
    for (flag, resource, unit) in [("cores-total", "cpu", ""), ("memory-total", "memory", "Gi")] {
        let Some((minimum, maximum)) = flags.parsed_value(flag, losses, parse_bounds) else {
            continue;
        };
        if minimum > 0 {
            let why = "clusters have no minimum size; use replicas in a pool";
            losses.add(format!("{}: the minimum", flags.flag_text(flag)), why);
        }
        let maximum = match unit {
            "" => Value::from(maximum),
            unit => Value::from(format!("{maximum}{unit}")),
        };
        limits.insert(resource.to_owned(), maximum);
    }
    limits
}

/// Parses `MIN:MAX`.
pub(super) fn parse_bounds(text: &str) -> Result<(i64, i64), FlagError> {
    let bounds = text.split_once(':').and_then(|(minimum, maximum)| {
        let (minimum, maximum) = (minimum.trim().parse().ok()?, maximum.trim().parse().ok()?);
        (0 <= minimum && minimum <= maximum).then_some((minimum, maximum))
    });
    bounds.ok_or(FlagError::Range)
}

/// Converts the parallelism and the delays of scale-down. Defaults of the autoscaler are
/// written explicitly.
fn cluster_disruption(flags: &FlagValues, losses: &mut DroppedFields) -> HclBody {
    let mut body = HclBody::default();
    for (names, default, reasons) in [
        (
            &["max-scale-down-parallelism", "max-empty-bulk-delete"][..],
            LEAVING,
            &["empty", "underutilized"][..],
        ),
        (&["max-drain-parallelism"], DRAINED, &["underutilized"]),
    ] {
        let count = names.iter().find_map(|name| flags.count(name, losses));
        let mut inner = HclBody::default();
        inner.set("nodes", count.unwrap_or(default));
        inner.set("reasons", reasons.to_vec());
        body.add_block("budget", None, inner);
    }
    let mut inner = HclBody::default();
    for (argument, flag, default) in [
        ("after_launch", "scale-down-delay-after-add", "10m"),
        ("after_end", "scale-down-delay-after-delete", ""),
        ("after_failure", "scale-down-delay-after-failure", "3m"),
    ] {
        match flags.duration(flag, losses) {
            Some(length) => inner.set(argument, format_duration(Some(length))),
            None if default.is_empty() => {}
            None => inner.set(argument, default),
        }
    }
    body.add_block("cool_down", None, inner);
    body
}

/// Converts the batching of pods. The default priority cutoff is written explicitly.
pub(super) fn scheduler_block(flags: &FlagValues) -> ConvertedBlock {
    let (mut body, mut losses) = (HclBody::default(), DroppedFields::for_object(flags.of.as_str()));
    let cutoff = flags.parsed_value("expendable-pods-priority-cutoff", &mut losses, |text| {
        text.trim().parse::<i64>().map_err(|_| FlagError::Number)
    });
    body.set("priority_cutoff", cutoff.unwrap_or(CUTOFF));
    let names = flags.values_of("allowed-scheduler-names").iter();
    let mut names: Vec<&str> = names
        .flat_map(|name| name.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    names.dedup();
    body.set_unless_empty("schedulers", names);
    ConvertedBlock::new("scheduler", None, body, losses, ItemNoun::Ours)
}
