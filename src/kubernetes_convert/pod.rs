//! Converts a pod for scheduling and draining, and reports its defects and unsupported fields.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{place, requests};
use crate::kubernetes_convert::api_types::{
    self as json, Meta, OwnerReference, PodSpec, PodStatus, PodVolume,
};
use crate::model::id::{NodeName, ObjectKey};
use crate::model::labels::{REGION, ZONE};
use crate::model::pod::{HeldBack, Owner, Pod, PodPhase};
use crate::model::taint::{Effect, Toleration, TolerationOperator};

/// Maximum number of reported defects of a pod, and of characters in each.
const DEFECTS: usize = 5;
const DEFECT_CHARS: usize = 200;

/// Default termination grace period of Kubernetes.
const GRACE_SECONDS: i64 = 30;

/// Labels that the API server copies from a node to each pod bound to it, since Kubernetes 1.35
/// (`PodTopologyLabelsAdmission`, KEP-4742). The replacement pod that its controller creates does
/// not have these labels. With these labels, no two pods of a Deployment would be identical. A
/// selector that uses them matches no pod here (docs/decisions/035-labels-that-binding-copies.md).
const COPIED: [&str; 2] = [ZONE, REGION];

/// Truncates an untrusted string and replaces control characters.
pub(super) fn clip_text(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).take(DEFECT_CHARS).collect()
}

pub(super) fn convert_pod(mut pod: json::Pod) -> Pod {
    // Labels of a template are removed as well: bound and pending pods must be identical.
    let labels = &mut pod.metadata.labels;
    COPIED.iter().for_each(|key| _ = labels.remove(*key));
    build_pod(pod.metadata, pod.spec, pod.status)
}

/// Converts a pod template. The pod has the name of its owner.
pub(super) fn convert_template(owner: &Meta, template: json::PodTemplate) -> Pod {
    let meta =
        Meta { namespace: owner.namespace.clone(), name: owner.name.clone(), ..template.metadata };
    build_pod(meta, template.spec, PodStatus::default())
}

fn build_pod(meta: Meta, spec: PodSpec, status: PodStatus) -> Pod {
    let mut defects = Vec::new();
    let requests = requests::pod_requests(&spec, &status, &mut defects);
    let node_affinity = place::node_affinity(&spec, &mut defects);
    let near = &spec.affinity.pod_affinity;
    let affinity = place::pod_terms(&near.required, &meta, "the pod affinity", &mut defects);
    let apart = &spec.affinity.pod_anti_affinity;
    let anti_affinity =
        place::pod_terms(&apart.required, &meta, "the pod anti-affinity", &mut defects);
    let spread = place::spread_constraints(&spec, &meta.labels, &mut defects);
    let tolerations = convert_tolerations(&spec, &mut defects);
    let host_ports = host_ports(&spec, &mut defects);
    let preferred_affinity = place::preferred_pods(&near.preferred, &meta);
    let preferred_anti_affinity = place::preferred_pods(&apart.preferred, &meta);
    let volume_claims = volume_claims(&meta.name, &spec.volumes);
    let gang = place::pod_group(&meta);
    let grace = spec.termination_grace_period_seconds;
    let (unschedulable, held_back) = scheduling_status(&spec, &status);
    let ready = ready_status(&status);
    Pod {
        key: ObjectKey { namespace: meta.namespace, name: meta.name },
        uid: meta.uid,
        version: meta.resource_version.parse().unwrap_or(0),
        created: meta.creation_timestamp,
        started: status.start_time,
        deleting: deletion_requested_at(
            meta.deletion_timestamp,
            meta.deletion_grace_period_seconds,
        ),
        gone_by: meta.deletion_timestamp,
        deletion_seen: None,
        finalizers: meta.finalizers,
        labels: meta.labels,
        annotations: meta.annotations.0,
        owner: controller_owner(meta.owner_references),
        node: node_name(spec.node_name),
        nominated_node: node_name(status.nominated_node_name),
        phase: parse_phase(&status.phase),
        unschedulable,
        ready,
        priority: spec.priority,
        priority_class: spec.priority_class_name,
        requests,
        node_selector: spec.node_selector,
        node_affinity,
        preferred_nodes: place::preferred_nodes(&spec.affinity.node_affinity.preferred),
        affinity,
        anti_affinity,
        preferred_affinity,
        preferred_anti_affinity,
        spread,
        tolerations,
        host_ports,
        volume_claims,
        local_volumes: local_volumes(&spec.volumes),
        has_resource_claims: !spec.resource_claims.is_empty(),
        is_gated: !spec.scheduling_gates.is_empty(),
        held_back,
        scheduler: spec.scheduler_name,
        gang,
        grace_seconds: grace.unwrap_or(GRACE_SECONDS),
        defects: bounded_defects(&defects),
    }
}

/// Returns the first defects, each clipped.
fn bounded_defects(defects: &[String]) -> Vec<String> {
    let first = defects.iter().take(DEFECTS);
    first.map(|defect| clip_text(defect)).collect()
}

/// Reason of a condition, if the condition has this status.
fn condition_reason<'a>(all: &'a [json::Condition], kind: &str, value: &str) -> Option<&'a str> {
    all.iter()
        .find(|condition| condition.kind == kind)
        .filter(|condition| condition.status == value)
        .map(|condition| condition.reason.as_str())
}

/// Whether the scheduler has reported that the pod is unschedulable, and otherwise why the
/// scheduler has not decided.
fn scheduling_status(spec: &PodSpec, status: &PodStatus) -> (bool, Option<HeldBack>) {
    let group = &spec.scheduling_group.pod_group_name;
    match condition_reason(&status.conditions, "PodScheduled", "False") {
        Some("Unschedulable") => (true, None),
        Some("SchedulingGated" | "") => (false, None),
        Some(reason) => (false, Some(HeldBack::Reason(clip_text(reason)))),
        None if spec.node_name.is_empty() && !group.is_empty() => {
            (false, Some(HeldBack::Group(clip_text(group))))
        }
        None => (false, None),
    }
}

/// Status of the `Ready` condition.
fn ready_status(status: &PodStatus) -> Option<bool> {
    [("True", true), ("False", false)]
        .into_iter()
        .find(|(value, _)| condition_reason(&status.conditions, "Ready", value).is_some())
        .map(|(_, ready)| ready)
}

/// Names of the volumes that store their data on the node.
fn local_volumes(volumes: &[PodVolume]) -> Vec<String> {
    let local = volumes.iter().filter(|volume| is_local(volume));
    local.map(|volume| volume.name.clone()).collect()
}

/// Names of the volume claims of a pod. The claim of a generic ephemeral volume is named after the
/// pod and the volume.
fn volume_claims(pod: &str, volumes: &[PodVolume]) -> Vec<String> {
    volumes
        .iter()
        .filter_map(|volume| match (&volume.persistent_volume_claim, volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
            (None, None) => None,
        })
        .collect()
}

/// Returns true if the data of a volume is lost with the node and is not only in memory. Source:
/// Cluster Autoscaler, `drain.HasBlockingLocalStorage`.
fn is_local(volume: &PodVolume) -> bool {
    volume.host_path.is_some()
        || volume.empty_dir.as_ref().is_some_and(|empty_dir| empty_dir.medium != "Memory")
}

/// The owner of an object that is also its controller.
fn controller_owner(references: Vec<OwnerReference>) -> Option<Owner> {
    let mut controllers = references.into_iter().filter(|it| it.controller);
    controllers.next().map(|it| Owner { kind: it.kind, name: it.name, uid: it.uid })
}

fn parse_phase(phase: &str) -> PodPhase {
    match phase {
        "Running" => PodPhase::Running,
        "Succeeded" => PodPhase::Succeeded,
        "Failed" => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}

fn node_name(name: String) -> Option<NodeName> {
    (!name.is_empty()).then_some(NodeName(name))
}

/// Time of the deletion request. The object has only the deletion time, which is later by the grace
/// period.
fn deletion_requested_at(gone: Option<Timestamp>, grace_seconds: i64) -> Option<Timestamp> {
    let gone = gone?;
    let requested = gone.checked_sub(SignedDuration::from_secs(grace_seconds));
    Some(requested.unwrap_or(gone))
}

fn convert_tolerations(spec: &PodSpec, defects: &mut Vec<String>) -> Vec<Toleration> {
    let mut tolerations = Vec::with_capacity(spec.tolerations.len());
    for it in &spec.tolerations {
        let operator = match it.operator.as_str() {
            "" | "Equal" => TolerationOperator::Equal,
            "Exists" => TolerationOperator::Exists,
            "Lt" => TolerationOperator::Lt,
            "Gt" => TolerationOperator::Gt,
            other => {
                defects.push(format!("the operator {other:?} of a toleration"));
                continue;
            }
        };
        let effect = Effect::parse(&it.effect);
        if effect.is_none() && !it.effect.is_empty() {
            defects.push(format!("the effect {:?} of a toleration", it.effect));
            continue;
        }
        tolerations.push(Toleration {
            key: it.key.clone(),
            operator,
            value: it.value.clone(),
            effect,
        });
    }
    tolerations
}

fn host_ports(spec: &PodSpec, defects: &mut Vec<String>) -> BTreeSet<(String, String, u16)> {
    let sidecars = spec.init_containers.iter().filter(|it| it.restart_policy == "Always");
    let mut ports = BTreeSet::new();
    for port in spec.containers.iter().chain(sidecars).flat_map(|it| &it.ports) {
        if port.host_port == 0 {
            continue;
        }
        let Ok(number) = u16::try_from(port.host_port) else {
            defects.push(format!("the host port {}", port.host_port));
            continue;
        };
        let protocol = match port.protocol.as_str() {
            "" => "TCP",
            protocol => protocol,
        };
        let address = match port.host_ip.as_str() {
            "0.0.0.0" => "",
            address => address,
        };
        ports.insert((protocol.to_owned(), address.to_owned(), number));
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::convert_pod;
    use crate::model::pod::{HeldBack, Pod};

    fn read(json: &str) -> Pod {
        convert_pod(serde_json::from_str(json).expect("a pod"))
    }

    #[test]
    fn a_pending_pod_is_read() {
        let pod = read(
            r#"{"metadata": {"name": "a", "namespace": "b", "uid": "c",
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"f": {}}],
                "annotations": {"long": "text", "karpenter.sh/do-not-disrupt": "true"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": true}]},
                "spec": {"containers": [{"ports": [{"hostPort": 80, "hostIP": "0.0.0.0"}]}],
                "nodeSelector": null, "tolerations": [{"operator": "Exists"}]},
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled",
                "status": "False", "reason": "Unschedulable"}]}}"#,
        );
        assert_eq!(pod.key.to_string(), "b/a");
        assert!(pod.is_provisionable());
        assert_eq!(pod.annotations.len(), 1);
        assert_eq!(pod.host_ports.first(), Some(&("TCP".into(), String::new(), 80)));
        assert_eq!(pod.defects.len(), 0);
    }

    /// Since Kubernetes 1.35, the API server labels a pod with the zone and region of its node.
    #[test]
    fn bound_pod_is_equivalent_to_its_replacement() {
        let labels = r#""app": "web", "pod-template-hash": "7d4""#;
        let of = |labels: &str, node: &str| {
            read(&format!(
                r#"{{"metadata": {{"name": "a", "namespace": "b", "labels": {{{labels}}}}},
                    "spec": {{{node}"topologySpreadConstraints": [{{"maxSkew": 1,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["app"],
                    "labelSelector": {{"matchLabels": {{"app": "web"}}}}}}]}}}}"#
            ))
        };
        let copied = format!(
            r#"{labels}, "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r""#
        );
        let node = r#""nodeName": "n", "#;
        let (bound, next) = (of(&copied, node), of(labels, ""));
        assert_eq!(bound.labels.len(), 2);
        assert!(bound.is_like(&next) && next.is_like(&bound));
        assert_eq!(bound.labels, of(labels, node).labels, "bound by an older API server");
        // If the template has such a label, the API server has overwritten it.
        let other_zone = format!(r#"{labels}, "topology.kubernetes.io/zone": "own""#);
        assert!(bound.is_like(&of(&other_zone, "")));
    }

    #[test]
    fn reasons_of_unscheduled_pods_are_distinguished() {
        let of = |spec: &str, conditions: &str| {
            let pod = read(&format!(
                r#"{{"metadata": {{"name": "a"}}, "spec": {{{spec}}},
                    "status": {{"conditions": [{conditions}]}}}}"#
            ));
            (pod.unschedulable, pod.held_back)
        };
        let condition = |reason: &str| {
            format!(r#"{{"type": "PodScheduled", "status": "False", "reason": "{reason}"}}"#)
        };
        let group = r#""schedulingGroup": {"podGroupName": "g"}"#;
        let held = |reason: &str| Some(HeldBack::Reason(reason.to_owned()));
        assert_eq!(of("", ""), (false, None));
        assert_eq!(of("", &condition("Unschedulable")), (true, None));
        assert_eq!(of("", &condition("SchedulingGated")), (false, None));
        let error = condition("SchedulerError");
        assert_eq!(of("", &error), (false, held("SchedulerError")));
        assert_eq!(of(group, &error), (false, held("SchedulerError")));
        assert_eq!(of(group, ""), (false, Some(HeldBack::Group("g".to_owned()))));
        assert_eq!(of(group, &condition("Unschedulable")), (true, None));
        let bound = format!(r#"{group}, "nodeName": "n""#);
        assert_eq!(of(&bound, ""), (false, None));
    }

    #[test]
    fn pod_readiness_is_true_false_or_unknown() {
        let cases = [("True", Some(true)), ("False", Some(false)), ("Unknown", None), ("", None)];
        for (status, expect) in cases {
            let pod = read(&format!(
                r#"{{"status": {{"conditions": [{{"type": "Ready", "status": "{status}"}}]}}}}"#
            ));
            assert_eq!(pod.ready, expect, "{status:?}");
        }
        assert_eq!(read("{}").ready, None);
    }

    #[test]
    fn volumes_scheduler_and_devices_are_read() {
        let pod = read(
            r#"{"metadata": {"name": "a"}, "spec": {"schedulerName": "other",
                "resourceClaims": [{"name": "gpu"}], "volumes": [{"name": "none", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "logs", "hostPath": {"path": "/var/log"}},
                {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}}"#,
        );
        assert_eq!(pod.volume_claims, ["data", "a-scratch"]);
        assert_eq!(pod.local_volumes, ["none", "logs"]);
        assert_eq!(pod.scheduler, "other");
        assert!(pod.has_resource_claims);
        let plain = read(r#"{"metadata": {"name": "a"}}"#);
        assert!(plain.scheduler.is_empty() && !plain.has_resource_claims);
    }

    #[test]
    fn invalid_pod_fields_are_defects() {
        let pod = read(
            r#"{"spec": {"containers": [{"resources": {"requests": {"cpu": "lots\u001b[2J",
                "memory": "-1"}}, "ports": [{"hostPort": 99999}]}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Near"}]}]}}},
                "tolerations": [{"effect": "NoFun"}]}}"#,
        );
        assert_eq!(pod.defects.len(), 5);
        assert!(pod.defects.iter().all(|it| !it.contains('\u{1b}')), "{:?}", pod.defects);
    }
}
