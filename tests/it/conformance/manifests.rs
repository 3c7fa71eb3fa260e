//! Cases about manifests, which are passed to the real binary as the API would print them.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fixture::{Check, ensure};
use super::run::{Case, run_cases};
use crate::binary::outrigger;

/// The plan of the binary for the objects of a cluster. The types `t1` to `t8` have that number of
/// cores, of which a tenth of a core is reserved, and cost that number of dollars.
fn planned(items: &[Value]) -> Result<Value, String> {
    let types: Vec<Value> = (1..9).map(instance_type).collect();
    let dir = TempDir::new().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let config = write("main.hcl", "cluster \"a\" {\n  simulated {}\n}\npool \"a\" {}\n");
    let catalog = write("types.json", &Value::from(types).to_string());
    let mut child = Command::new(outrigger())
        .args(["plan", "--json", "--cluster-state", "-", "--config"])
        .arg(&config)
        .arg("--catalog")
        .arg(&catalog)
        .env_remove("OUTRIGGER_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let state = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let mut pipe = child.stdin.take().expect("a pipe");
    drop(pipe.write_all(state.as_bytes()));
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).map_err(|fault| format!("{fault}: {errors}"))
}

fn instance_type(cores: i64) -> Value {
    let offering = |zone: &str| {
        json!({"Price": cores, "Available": true, "Requirements": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        ]})
    };
    let offerings = ["z1", "z2", "z3"].map(offering);
    json!({
        "name": format!("t{cores}"), "architecture": "amd64", "operatingSystems": ["linux"],
        "resources": {"cpu": cores.to_string(), "memory": "64Gi", "pods": "20"},
        "offerings": offerings,
    })
}

/// A pending pod with this specification.
fn waiting(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "a", "name": name, "uid": name, "labels": {"app": "a"}},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    })
}

fn container(cores: &str) -> Value {
    json!({"name": format!("c{cores}"), "resources": {"requests": {"cpu": cores}}})
}

fn sidecar(cores: &str) -> Value {
    let mut sidecar = container(cores);
    sidecar["restartPolicy"] = "Always".into();
    sidecar
}

/// A DaemonSet whose pods have this specification.
fn daemon(spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": "a", "name": "agent"},
        "spec": {"selector": {"matchLabels": {"d": "d"}},
            "template": {"metadata": {"labels": {"d": "d"}}, "spec": spec}},
    })
}

/// Checks that the pod `p` gets this type, or that it is not placed.
fn check_type(items: &[Value], expect: Option<&str>) -> Check {
    let plan = planned(items)?;
    let launches = plan["launches"].as_array().cloned().unwrap_or_default();
    let launch = launches.iter().find(|launch| launch["pods"].to_string().contains("\"a/p\""));
    let got = launch.and_then(|launch| launch["instance_type"].as_str());
    ensure(got == expect, || format!("{got:?}, not {expect:?}: {plan}"))
}

/// Checks the type for a pod with one core beside a daemon with this specification.
fn check_beside_daemon(spec: &Value, expect: Option<&str>) -> Check {
    let pod = waiting("p", &json!({"containers": [container("1")]}));
    check_type(&[pod, daemon(spec)], expect)
}

const REQUESTS: &[Case] = &[
    // An init container that runs before the sidecar starts does not add to it.
    ("provisioning:532", || {
        let spec = json!({"containers": [container("1")],
            "initContainers": [container("4"), sidecar("2")]});
        check_type(&[waiting("p", &spec)], Some("t5"))
    }),
    ("provisioning:583", || {
        let spec = json!({"containers": [container("3")],
            "initContainers": [sidecar("2"), container("1")]});
        check_type(&[waiting("p", &spec)], Some("t6"))
    }),
    ("provisioning:634", || {
        let spec = json!({"containers": [container("1")],
            "initContainers": [sidecar("2"), container("4")]});
        check_type(&[waiting("p", &spec)], Some("t7"))
    }),
    ("provisioning:685", || {
        let spec = json!({"containers": [container("1")],
            "resources": {"requests": {"cpu": "3"}}});
        check_type(&[waiting("p", &spec)], Some("t4"))
    }),
    ("scheduling:1546", || {
        let spec = json!({"containers": [container("1")], "runtimeClassName": "thick",
            "overhead": {"cpu": "2"}});
        check_type(&[waiting("p", &spec)], Some("t4"))
    }),
    ("scheduling:1716", || {
        let spec = json!({"containers": [container("1")], "initContainers": [container("3")]});
        check_type(&[waiting("p", &spec)], Some("t4"))
    }),
    ("scheduling:1741", || {
        let spec = json!({"containers": [container("1")], "initContainers": [container("100")]});
        check_type(&[waiting("p", &spec)], None)
    }),
];

#[test]
fn pod_requests_are_summed_like_in_the_kube_scheduler() {
    run_cases(REQUESTS);
}

const DAEMONS: &[Case] = &[
    ("provisioning:1057", || {
        let limits = json!({"limits": {"cpu": "10000", "memory": "10000Gi"}});
        check_beside_daemon(&json!({"containers": [{"name": "a", "resources": limits}]}), None)
    }),
    ("provisioning:1070", || {
        let spec = json!({"containers": [container("1")], "initContainers": [container("2")]});
        check_beside_daemon(&spec, Some("t4"))
    }),
    ("provisioning:1098", || {
        let spec = json!({"containers": [container("10000")], "initContainers": [container("1")]});
        check_beside_daemon(&spec, None)
    }),
    ("provisioning:1119", || {
        let spec = json!({"containers": [container("1")], "initContainers": [container("10000")]});
        check_beside_daemon(&spec, None)
    }),
];

#[test]
fn daemon_set_requests_are_summed_like_pod_requests() {
    run_cases(DAEMONS);
}

const LABELS: &[Case] = &[("topology:1171", || {
    let constraint = json!({"topologyKey": "kubernetes.io/hostname", "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "a"}},
        "matchLabelKeys": ["unknown"]});
    let spec = json!({"containers": [container("1")], "topologySpreadConstraints": [constraint]});
    let pods = ["p", "q", "r", "s"].map(|name| waiting(name, &spec));
    let plan = planned(&pods)?;
    let launches = plan["launches"].as_array().map_or(0, Vec::len);
    ensure(launches == 4, || format!("{launches} launches: {plan}"))
})];

#[test]
fn missing_match_label_keys_do_not_narrow_the_selector() {
    run_cases(LABELS);
}

const MIGRATED: &[Case] = &[
    ("scheduling:3899", || {
        let volumes = |name: &str| {
            json!([{"name": "v",
            "persistentVolumeClaim": {"claimName": format!("{name}-v")}}])
        };
        check_migrated(volumes)
    }),
    ("scheduling:3958", || {
        let volumes = |_: &str| {
            json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {
            "spec": {"storageClassName": "old"}}}}])
        };
        check_migrated(volumes)
    }),
];

/// Checks two pods with one in-tree volume each, and a node to which the CSI driver that replaces
/// the in-tree plugin can attach one volume.
fn check_migrated(volumes: fn(&str) -> Value) -> Check {
    let mut items = vec![
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
            "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "20"},
                "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "n",
                "allocatable": {"count": 1}}]}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "old"}, "provisioner": "kubernetes.io/aws-ebs",
            "volumeBindingMode": "WaitForFirstConsumer"}),
    ];
    for name in ["p", "q"] {
        let claim = format!("{name}-v");
        items.push(json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": claim},
            "spec": {"awsElasticBlockStore": {"volumeID": claim}, "storageClassName": "old"}}));
        items.push(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "a", "name": claim,
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": claim, "storageClassName": "old"},
            "status": {"phase": "Bound"}}));
        let spec = json!({"containers": [container("1")], "volumes": volumes(name)});
        items.push(waiting(name, &spec));
    }
    let plan = planned(&items)?;
    let placed = plan["placed_on_existing"][0]["pods"].as_array().map_or(0, Vec::len);
    let launches = plan["launches"].as_array().map_or(0, Vec::len);
    ensure((placed, launches) == (1, 1), || format!("{plan}"))
}

#[test]
fn migrated_in_tree_volumes_count_against_the_csi_driver_limit() {
    run_cases(MIGRATED);
}
