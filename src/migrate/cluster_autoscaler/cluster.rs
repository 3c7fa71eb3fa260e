//! The cluster that an autoscaler is for, and how its pods are collected: blocks of what flags say.
//! It must not know which pools there are.

use serde_json::{Map, Value};

use super::flags::FlagValues;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::format_units::duration;
use crate::migrate::hcl::{HclBlock, HclBody};
use crate::migrate::karpenter::import::{ConvertedBlock, ItemNoun};

/// What a cluster stands under that nobody has named.
const NAMELESS: &str = "NAME";

/// Pods of a lower priority wait for no node, untold. Source: Cluster Autoscaler,
/// `pkg/config/flags`.
const CUTOFF: i64 = -10;
/// How many nodes leave at once, and how many of them that have pods. Source: as above.
const LEAVING: i64 = 10;
const DRAINED: i64 = 1;

/// What is known of the cluster apart from flags.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterLocation {
    pub(super) name: Option<String>,
    pub(super) region: Option<String>,
    /// What EKS calls it, if it is one of its own.
    pub(super) eks: Option<String>,
}

/// The cluster's block, with what is lost of flags that are nobody's else.
pub(super) fn cluster(
    said: &FlagValues,
    of: &ClusterLocation,
    mut losses: DroppedFields,
) -> ConvertedBlock {
    let mut body = HclBody::default();
    body.comment("It is only watched until mode says \"manage\".");
    match &of.region {
        Some(region) => body.set("region", region.as_str()),
        None => losses.miss(
            "region",
            "neither AWS_REGION nor the ARN of a group tells it",
        ),
    }
    let limits = limits(said, &mut losses);
    if !limits.is_empty() {
        body.set("limits", Value::Object(limits));
    }
    if let Some(unready) = said.number("max-total-unready-percentage", &mut losses) {
        // More than all are never unready.
        body.set("unready_max", format!("{:.0}%", unready.min(100.0)));
    }
    match (&of.eks, &of.name) {
        (Some(eks), name) => {
            let mut inner = HclBody::default();
            if Some(eks) != name.as_ref() {
                inner.set("name", eks.as_str());
            }
            body.block("eks", None, inner);
        }
        (None, _) => {
            let why = "nothing tells how its API is reached: write one of them";
            losses.miss("eks or kubeconfig", why);
        }
    }
    let disruption = disruption(said, &mut losses);
    body.block("disruption", None, disruption);
    if of.name.is_none() {
        losses.miss(
            "name",
            "nothing tells how the cluster is called: give it with --cluster",
        );
    }
    ConvertedBlock {
        of: said.of.clone(),
        left_out: of.name.is_none() || of.region.is_none(),
        block: HclBlock {
            kind: "cluster",
            label: Some(of.name.clone().unwrap_or_else(|| NAMELESS.to_owned())),
            body,
        },
        losses: losses.all,
        words: ItemNoun::Ours,
    }
}

/// Limits on all of its nodes.
fn limits(said: &FlagValues, losses: &mut DroppedFields) -> Map<String, Value> {
    let mut limits = Map::new();
    let nodes = said.count("max-nodes-total", losses);
    if let Some(nodes) = nodes.filter(|own| *own > 0) {
        limits.insert("nodes".to_owned(), Value::from(nodes));
    }
    for (flag, resource, unit) in [("cores-total", "cpu", ""), ("memory-total", "memory", "Gi")] {
        let Some((least, most)) = said.parsed(flag, losses, bounds) else {
            continue;
        };
        if least > 0 {
            let why = "a cluster has no least size: replicas of a pool keep nodes";
            losses.add(format!("{}: the least", said.told(flag)), why);
        }
        let most = match unit {
            "" => Value::from(most),
            unit => Value::from(format!("{most}{unit}")),
        };
        limits.insert(resource.to_owned(), most);
    }
    limits
}

/// The least and the most, with a colon between them.
pub(super) fn bounds(text: &str) -> Result<(i64, i64), String> {
    let both = text.split_once(':').and_then(|(least, most)| {
        let (least, most) = (least.trim().parse().ok()?, most.trim().parse().ok()?);
        (0 <= least && least <= most).then_some((least, most))
    });
    both.ok_or_else(|| "it is not MIN:MAX".to_owned())
}

/// How many nodes may leave beside each other, and how long none does. What the autoscaler does
/// untold is written out.
fn disruption(said: &FlagValues, losses: &mut DroppedFields) -> HclBody {
    let mut body = HclBody::default();
    let mut budget = |flags: &[&str], untold: i64, reasons: &[&str]| {
        let mut counts = flags.iter().filter_map(|flag| said.count(flag, losses));
        let mut inner = HclBody::default();
        inner.set("nodes", counts.next().unwrap_or(untold));
        inner.set("reasons", reasons.to_vec());
        body.block("budget", None, inner);
    };
    let all = ["max-scale-down-parallelism", "max-empty-bulk-delete"];
    budget(&all, LEAVING, &["empty", "underutilized"]);
    budget(&["max-drain-parallelism"], DRAINED, &["underutilized"]);
    let mut inner = HclBody::default();
    for (argument, flag, default) in [
        ("after_launch", "scale-down-delay-after-add", "10m"),
        ("after_end", "scale-down-delay-after-delete", ""),
        ("after_failure", "scale-down-delay-after-failure", "3m"),
    ] {
        match said.duration(flag, losses) {
            Some(length) => inner.set(argument, duration(Some(length))),
            None if default.is_empty() => {}
            None => inner.set(argument, default),
        }
    }
    body.block("cool_down", None, inner);
    body
}

/// How pods are collected. Which of them count untold is written out, since all do here.
pub(super) fn scheduler(said: &FlagValues) -> ConvertedBlock {
    let (mut body, mut losses) = (HclBody::default(), DroppedFields::of(said.of.as_str()));
    let whole = |text: &str| {
        let number = text.trim().parse::<i64>();
        number.map_err(|_| "it is no number".to_owned())
    };
    let cutoff = said.parsed("expendable-pods-priority-cutoff", &mut losses, whole);
    body.set("priority_cutoff", cutoff.unwrap_or(CUTOFF));
    let names = said.list("allowed-scheduler-names").iter();
    let names = names.flat_map(|own| own.split(',')).map(str::trim);
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    names.dedup();
    if !names.is_empty() {
        body.set("schedulers", names);
    }
    ConvertedBlock {
        of: said.of.clone(),
        block: HclBlock {
            kind: "scheduler",
            label: None,
            body,
        },
        left_out: false,
        losses: losses.all,
        words: ItemNoun::Ours,
    }
}
