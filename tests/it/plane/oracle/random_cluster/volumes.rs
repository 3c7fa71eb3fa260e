//! Random volumes, claims and storage classes of pods.

use outrigger::model::labels::ZONE;
use serde_json::{Value, json};

use crate::plane::oracle::fixture::{DRIVER, Owned};

/// A volume of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Volume {
    /// Its claim is bound to a volume of these zones, or of all zones.
    There { zones: &'static [&'static str] },
    /// The same with the zone in labels.
    Labelled { zone: &'static str },
    /// It is provisioned for the first pod, by this class.
    Waits { class: &'static str },
    /// One claim for all the pods, which only one pod may use at a time.
    Once,
    /// The pod owns the claim.
    Ephemeral { class: &'static str },
    /// The claim has lost its volume.
    Lost,
    /// The claim does not exist.
    Missing,
    /// It is provisioned immediately, by a driver that does not run.
    AtOnce,
    /// It must be created manually, and was not.
    ByHand,
}

/// Returns the storage classes of the volumes.
pub(in crate::plane::oracle) fn classes() -> Vec<Value> {
    let class = |name: &str, provisioner: &str, mode: &str, zones: &[&str]| {
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": mode,
        });
        if !zones.is_empty() {
            class["allowedTopologies"] =
                json!([{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]);
        }
        class
    };
    let late = "WaitForFirstConsumer";
    vec![
        class("late", DRIVER, late, &[]),
        class("late-a-b", DRIVER, late, &["a", "b"]),
        class("late-c", DRIVER, late, &["c"]),
        class("at-once", DRIVER, "Immediate", &[]),
        class("by-hand", "kubernetes.io/no-provisioner", late, &[]),
    ]
}

fn claim(namespace: &Value, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": name, "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": "late", "csi": {"driver": DRIVER, "volumeHandle": name}},
    })
}

fn bind(claim: &mut Value, volume: &mut Value) {
    claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
    volume["spec"]["accessModes"] = claim["spec"]["accessModes"].clone();
    volume["spec"]["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"], "name": claim["metadata"]["name"]});
}

/// Adds a volume to a pod: its number in the pod, and the common name of the pods.
pub(super) fn mount(own: &mut Owned, kind: Volume, (number, shared): (usize, &str)) {
    let namespace = own.pod["metadata"]["namespace"].clone();
    let pod = own.pod["metadata"]["name"].as_str().unwrap_or_default();
    let name = match kind {
        Volume::Once => format!("{shared}-v{number}"),
        _ => format!("{pod}-v{number}"),
    };
    let mut source = json!({"persistentVolumeClaim": {"claimName": name}});
    let mut made = claim(&namespace, &name, "late");
    let mut there =
        volume(&format!("{namespace}-{name}", namespace = namespace.as_str().unwrap_or_default()));
    match kind {
        Volume::There { zones } => {
            if !zones.is_empty() {
                there["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = json!([
                    {"matchExpressions": [{"key": ZONE, "operator": "In", "values": zones}]}]);
            }
            bind(&mut made, &mut there);
            own.before.extend([there, made]);
        }
        Volume::Labelled { zone } => {
            there["metadata"]["labels"][ZONE] = zone.into();
            bind(&mut made, &mut there);
            own.before.extend([there, made]);
        }
        Volume::Once => {
            made["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
            bind(&mut made, &mut there);
            // It is created once, with the first pod.
            if pod.ends_with("-0") {
                own.before.extend([there, made]);
            }
        }
        Volume::Waits { class } => {
            made["spec"]["storageClassName"] = class.into();
            own.before.push(made);
        }
        Volume::AtOnce | Volume::ByHand => {
            let at_once = matches!(kind, Volume::AtOnce);
            let class = if at_once { "at-once" } else { "by-hand" };
            made["spec"]["storageClassName"] = class.into();
            own.before.push(made);
        }
        Volume::Lost => {
            bind(&mut made, &mut there);
            made["status"]["phase"] = "Lost".into();
            own.before.push(made);
        }
        Volume::Missing => {}
        Volume::Ephemeral { class } => {
            let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
                "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
            source = json!({"ephemeral": {"volumeClaimTemplate": template}});
            made["spec"]["storageClassName"] = class.into();
            own.owned.push(made);
        }
    }
    source["name"] = format!("v{number}").into();
    let volumes = &mut own.pod["spec"]["volumes"];
    match volumes.as_array_mut() {
        Some(volumes) => volumes.push(source),
        None => *volumes = json!([source]),
    }
}

/// Adds a volume in the zone of a running pod.
pub(super) fn of_resident(own: &mut Owned, zone: &str) {
    let zones: &[&str] = match zone {
        "a" => &["a"],
        "b" => &["b"],
        _ => &["c"],
    };
    mount(own, Volume::There { zones }, (0, ""));
}
