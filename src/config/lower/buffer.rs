//! Converts buffers, and checks that their capacity can be provided.

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::kubernetes_names::{label_key_fault, label_value_fault};
use crate::config::lower::quantities::{has_quantities, pod_requests, refuse_names};
use crate::config::lower::schedule::Schedules;
use crate::config::lower::{check_name, cluster_patterns, has_matching_name, pool};
use crate::config::report::{error_at, warning_at};
use crate::config::syntax::PathStep;
use crate::model::buffer::{Buffer, BufferPod, Scalable, ScalableKind};
use crate::model::cluster::Cluster;
use crate::model::id::PoolName;
use crate::model::labels::{POOL, label_restriction, normalized_key};
use crate::model::taint::{Effect, Taint, Toleration, TolerationOperator};

/// A buffer and its clusters.
pub(super) struct BufferSpec {
    buffer: Buffer,
    /// Names of clusters, or patterns.
    pub(super) clusters: Vec<String>,
    pub(super) section: DecodedBlock,
}

pub(super) fn lower_buffers(
    reader: &Decoder<'_>,
    pools: &[pool::PoolSpec],
    schedules: &Schedules,
) -> Vec<BufferSpec> {
    let sections = reader.decode_sections("buffer");
    sections.into_iter().map(|section| lower_buffer(section, pools, schedules)).collect()
}

/// Sets the buffers of a cluster. A buffer that names a pool is only for clusters with that pool.
pub(super) fn assign_buffers(drafts: &[BufferSpec], cluster: &mut Cluster) {
    let mut all = Vec::new();
    for draft in drafts.iter().filter(|draft| has_matching_name(&draft.clusters, cluster)) {
        let mut buffer = draft.buffer.clone();
        if let Some(name) = &buffer.pool {
            let Some(pool) = cluster.pool(name.as_str()) else {
                continue;
            };
            if let Some(pod) = &mut buffer.pod {
                pod.tolerations.extend(pool.taints.iter().map(toleration_of));
            }
        }
        all.push(buffer);
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    cluster.buffers = all;
}

/// Reports buffers whose pool is missing in their clusters.
pub(super) fn check_clusters(drafts: &[BufferSpec], clusters: &[&Cluster]) {
    for draft in drafts {
        let Some(pool) = &draft.buffer.pool else {
            continue;
        };
        let (mut missing, mut found) = (Vec::new(), false);
        for cluster in clusters.iter().filter(|cluster| has_matching_name(&draft.clusters, cluster))
        {
            match cluster.pool(pool.as_str()) {
                Some(_) => found = true,
                None => missing.push(cluster),
            }
        }
        for cluster in missing {
            let mut names = draft.clusters.iter();
            if let Some(index) = names.position(|name| *name == cluster.name.0) {
                let span = draft.section.inner_span("clusters", PathStep::Index(index));
                let detail = format!(
                    "The pool {:?} is not for the cluster {:?}, but the buffer is.",
                    pool.as_str(),
                    cluster.name.as_str()
                );
                error_at(ProblemCode::UnknownReference, span, detail)
                    .also(draft.section.value_span("pool"), "the pool")
                    .report(&draft.section);
            }
        }
        if !found && !clusters.is_empty() {
            let detail = format!("No cluster of the buffer has the pool {:?}.", pool.as_str());
            let span = draft.section.value_span("pool");
            warning_at(ProblemCode::MatchesNothing, span, detail).report(&draft.section);
        }
    }
}

fn lower_buffer(
    section: DecodedBlock,
    pools: &[pool::PoolSpec],
    schedules: &Schedules,
) -> BufferSpec {
    let name = section.label();
    check_name(&section, name, "a buffer");
    check_count(&section);
    check_static(&section, pools);
    let limits = section.quantities("limits").to_vec();
    let during = section.reference("during");
    let buffer = Buffer {
        name: name.to_owned(),
        pool: section.reference("pool").map(PoolName::from),
        replicas: section.count("replicas"),
        percentage: section.count("percentage"),
        scalable: section.block("scalable").and_then(lower_scalable),
        pod: section.block("pod").map(|inner| lower_pod(&section, inner)),
        during: during.and_then(|name| schedules.get(name).cloned().flatten()),
        limits,
    };
    check_limits(&section, &buffer);
    BufferSpec { buffer, clusters: cluster_patterns(&section), section }
}

/// Checks that the buffer sets the number of pods and describes the pods.
fn check_count(section: &DecodedBlock) {
    if !section.is_any_set(&["replicas", "percentage"]) && !has_quantities(section, "limits") {
        let detail = "The buffer does not set the number of pods to reserve capacity for.";
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .help("write one of replicas, percentage and limits")
            .report(section);
    }
    if section.block("scalable").is_some() {
        return;
    }
    let (detail, label, help) = if section.is_set("percentage") {
        (
            "percentage is a share of a workload, so it requires a scalable block.",
            "scalable is missing",
            "write scalable { … } with kind, namespace and name",
        )
    } else if section.block("pod").is_none() {
        (
            "The buffer does not describe the pods to reserve capacity for.",
            "pod is missing",
            "write pod { requests = { cpu = 1, memory = \"2Gi\" } }, or name a workload with \
             scalable { … }",
        )
    } else {
        return;
    };
    error_at(ProblemCode::MissingBlock, section.header, detail)
        .label(label)
        .help(help)
        .report(section);
}

/// A static pool launches no nodes for pods, including virtual pods.
fn check_static(section: &DecodedBlock, pools: &[pool::PoolSpec]) {
    let Some(name) = section.reference("pool") else {
        return;
    };
    let spec = pools.iter().find(|draft| draft.pool.name.as_str() == name);
    let Some(draft) = spec.filter(|draft| draft.pool.replicas.is_some()) else {
        return;
    };
    let detail =
        format!("The pool {name:?} is static: Outrigger launches no nodes in it for buffers.");
    error_at(ProblemCode::Conflict, section.value_span("pool"), detail)
        .also(draft.section.value_span("replicas"), "the pool is static")
        .report(section);
}

fn lower_scalable(section: &DecodedBlock) -> Option<Scalable> {
    Some(Scalable {
        kind: ScalableKind::parse(section.text("kind")?)?,
        namespace: section.owned_text("namespace")?,
        name: section.owned_text("name")?,
    })
}

fn lower_pod(buffer: &DecodedBlock, section: &DecodedBlock) -> BufferPod {
    let names = &["nodes", "pods"];
    let refused = refuse_names(section, "requests", names, "pods cannot request it");
    let amounts = section.quantities("requests");
    let nothing = amounts.iter().all(|(_, amount)| *amount == 0);
    if nothing && !refused && section.get("requests").is_some() {
        let detail = "The pod must request at least one resource.";
        let code = ProblemCode::InvalidValue;
        section.error(code, section.value_span("requests"), detail);
    }
    let node_selector = section.string_map("node_selector");
    for key in node_selector.keys() {
        let span = section.inner_span("node_selector", PathStep::KeyItself(key.clone()));
        let finding = if let Some(why) = label_restriction(key) {
            let detail = format!("A pod cannot require the label {key:?}: {why}.");
            error_at(ProblemCode::RestrictedLabel, span, detail)
        } else if let Some(pool) = buffer.get("pool").filter(|_| normalized_key(key) == POOL) {
            let detail = "The pool is set twice: with the argument pool, and here.";
            error_at(ProblemCode::Conflict, span, detail).also(pool.name_span, "")
        } else {
            continue;
        };
        finding.report(section);
    }
    let tolerations = section.blocks("toleration");
    BufferPod {
        requests: pod_requests(amounts),
        node_selector,
        node_affinity: Vec::new(),
        tolerations: tolerations.filter_map(lower_toleration).collect(),
    }
}

fn lower_toleration(section: &DecodedBlock) -> Option<Toleration> {
    let key = section.label();
    // An empty label is already reported.
    let key_fault = label_key_fault(key).filter(|_| !key.is_empty());
    let value = section.text("value");
    let value_fault = value.and_then(label_value_fault);
    let (part, text, why, span) = match (key_fault, value_fault) {
        (Some(why), _) => ("key", key, why, section.label_span()),
        (None, Some(why)) => ("value", value.unwrap_or_default(), why, section.value_span("value")),
        (None, None) => {
            let operator = match value {
                Some(_) => TolerationOperator::Equal,
                None => TolerationOperator::Exists,
            };
            return Some(Toleration {
                key: key.to_owned(),
                operator,
                value: value.unwrap_or_default().to_owned(),
                effect: section.text("effect").and_then(Effect::parse),
            });
        }
    };
    let detail = format!("{text:?} is not a valid taint {part}. {why}");
    section.error(ProblemCode::InvalidLabel, span, detail);
    None
}

fn toleration_of(taint: &Taint) -> Toleration {
    Toleration {
        key: taint.key.clone(),
        operator: TolerationOperator::Equal,
        value: taint.value.clone(),
        effect: Some(taint.effect),
    }
}

/// Warns about limits on resources that the pods do not request.
fn check_limits(section: &DecodedBlock, buffer: &Buffer) {
    let Some(pod) = &buffer.pod else {
        return;
    };
    for (name, _) in &buffer.limits {
        if pod.requests.get(name) > 0 {
            continue;
        }
        let span = section.inner_span("limits", PathStep::KeyItself(name.clone()));
        let detail = format!("The pods do not request {name}, so this limit has no effect.");
        warning_at(ProblemCode::Unused, span, detail).report(section);
    }
}
