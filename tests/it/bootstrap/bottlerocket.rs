//! User data of Bottlerocket nodes.

use jiff::SignedDuration;
use outrigger::model::node_class::image::{AmiFamily, ImageTerm};
use outrigger::model::node_class::kubelet::{Signal, Threshold};
use toml::{Table, Value};

use super::fixture::{Case, Change, address, alias, reserved, set_all_settings};

fn plain() -> Case {
    Case::of(AmiFamily::Bottlerocket)
}

/// The settings of a node.
fn settings(case: &Case) -> Table {
    let all: Table = case.text().parse().expect("TOML");
    let settings = all["settings"].as_table();
    settings.expect("settings").clone()
}

fn kubernetes(change: Change) -> Table {
    let settings = settings(&plain().with(change));
    settings["kubernetes"].as_table().expect("kubernetes").clone()
}

fn value(text: &str) -> Value {
    let all: Table = format!("value = {text}").parse().expect(text);
    all["value"].clone()
}

/// A setting, the user's value, a change of the node class, and the value in the user data.
type Override = (&'static str, &'static str, Change, &'static str);

const OVERRIDES: [Override; 13] = [
    ("max-pods", "7", |_| {}, "29"),
    ("max-pods", "7", |it| it.class.kubelet.max_pods = Some(10), "10"),
    (
        "system-reserved",
        "{cpu = \"1\"}",
        |it| {
            it.class.kubelet.system_reserved.insert("cpu".to_owned(), reserved(500, "500m"));
        },
        "{cpu = \"500m\"}",
    ),
    (
        "kube-reserved",
        "{cpu = \"1\", pid = \"3\"}",
        |it| {
            it.class.kubelet.kube_reserved.insert("memory".to_owned(), reserved(1 << 30, "1Gi"));
        },
        "{memory = \"1Gi\"}",
    ),
    (
        "eviction-hard",
        "{\"memory.available\" = \"1%\"}",
        |it| {
            it.class.kubelet.eviction_hard.insert(Signal::MemoryAvailable, Threshold::Share(1050));
        },
        "{\"memory.available\" = \"10.5%\"}",
    ),
    (
        "eviction-soft",
        "{\"memory.available\" = \"1%\"}",
        |it| {
            it.class.kubelet.eviction_soft.insert(Signal::MemoryAvailable, Threshold::Share(2000));
        },
        "{\"memory.available\" = \"20%\"}",
    ),
    (
        "eviction-soft-grace-period",
        "{\"memory.available\" = \"1s\"}",
        |it| {
            let own = &mut it.class.kubelet.eviction_soft_grace_period;
            own.insert(Signal::MemoryAvailable, SignedDuration::from_secs(90));
        },
        "{\"memory.available\" = \"1m30s\"}",
    ),
    (
        "eviction-max-pod-grace-period",
        "1",
        |it| it.class.kubelet.eviction_max_pod_grace_period = Some(10),
        "10",
    ),
    (
        "image-gc-high-threshold-percent",
        "\"1\"",
        |it| it.class.kubelet.image_gc_high_threshold_percent = Some(50),
        "\"50\"",
    ),
    (
        "image-gc-low-threshold-percent",
        "\"1\"",
        |it| it.class.kubelet.image_gc_low_threshold_percent = Some(40),
        "\"40\"",
    ),
    ("cpu-cfs-quota-enforced", "true", |it| it.class.kubelet.cpu_cfs_quota = Some(false), "false"),
    ("cluster-dns-ip", "\"10.9.9.9\"", |_| {}, "\"10.100.0.10\""),
    (
        "cluster-dns-ip",
        "\"10.9.9.9\"",
        |it| {
            it.class.kubelet.cluster_dns = vec![address("10.0.0.7"), address("10.0.0.8")];
        },
        "[\"10.0.0.7\", \"10.0.0.8\"]",
    ),
];

#[test]
fn node_class_settings_override_user_settings() {
    for (key, user_value, change, expected) in OVERRIDES {
        let mut case = plain();
        case.class.user_data = format!("[settings.kubernetes]\n{key} = {user_value}\n");
        let settings = settings(&case.with(change));
        assert_eq!(settings["kubernetes"][key], value(expected), "{key}");
    }
}

#[test]
fn unmanaged_user_settings_are_kept() {
    // Rule 26, without loss: unknown keys and tables next to the settings are kept.
    let mut case = plain();
    case.class.user_data = "[settings.kubernetes]\nfuture = {a = 1}\n\
        image-gc-high-threshold-percent = \"70\"\n\
        cluster-dns-ip = \"10.9.9.9\"\n\
        [settings.kubernetes.node-labels]\nown = \"1\"\nteam = \"red\"\n\
        [settings.kubernetes.memory-manager-reserved-memory.0]\n\
        enabled = true\nmemory = \"1Gi\"\nhugepages-2Mi = \"2Mi\"\n\
        [settings.kubernetes.memory-manager-reserved-memory.1]\nenabled = false\n\
        [settings.host-containers.admin]\nenabled = true\n[beside]\nx = 1979-05-27\n"
        .to_owned();
    case.cluster.dns = None;
    let all: Table = case.text().parse().expect("TOML");
    let kubernetes = &all["settings"]["kubernetes"];
    assert_eq!(kubernetes["future"], value("{a = 1}"));
    assert_eq!(kubernetes["image-gc-high-threshold-percent"], value("\"70\""));
    assert_eq!(kubernetes["cluster-dns-ip"], value("\"10.9.9.9\""));
    let expected =
        "{0 = {enabled = true, memory = \"1Gi\", hugepages-2Mi = \"2Mi\"}, 1 = {enabled = false}}";
    assert_eq!(kubernetes["memory-manager-reserved-memory"], value(expected));
    assert_eq!(all["settings"]["host-containers"], value("{admin = {enabled = true}}"));
    assert_eq!(all["beside"], value("{x = 1979-05-27}"));
    let labels = &kubernetes["node-labels"];
    assert_eq!((&labels["own"], &labels["team"]), (&value("\"1\""), &value("\"blue\"")));
}

#[test]
fn settings_contain_the_cluster_the_labels_and_the_taints() {
    let own = kubernetes(|_| {});
    assert_eq!(own["api-server"], value("\"https://ABCDEF.gr7.eu-west-1.eks.amazonaws.com\""));
    assert_eq!(own["cluster-name"], value("\"prod\""));
    assert!(own["cluster-certificate"].as_str().is_some_and(|own| own.starts_with("LS0t")));
    let expected = "{\"karpenter.k8s.aws/ec2nodeclass\" = \"default\", \
        \"karpenter.sh/capacity-type\" = \"spot\", \"karpenter.sh/do-not-sync-taints\" = \"true\", \
        \"karpenter.sh/nodepool\" = \"general\", team = \"blue\"}";
    assert_eq!(own["node-labels"], value(expected));
    let expected =
        "{dedicated = [\"blue:NoSchedule\"], \"karpenter.sh/unregistered\" = [\":NoExecute\"]}";
    assert_eq!(own["node-taints"], value(expected));
    assert!(
        !own.contains_key("kube-reserved"),
        "Bottlerocket reserves the same resources by default"
    );
}

#[test]
fn user_taint_unknown_to_the_pool_is_rejected() {
    let with = |taints: &str| {
        let mut case = plain();
        case.class.user_data = format!("[settings.kubernetes.node-taints]\n{taints}\n");
        case
    };
    for known in ["", "dedicated = [\"blue:NoSchedule\"]", "dedicated = \"blue:NoSchedule\""] {
        with(known).text();
    }
    for unknown in
        ["dedicated = [\"red:NoSchedule\"]", "other = [\":NoSchedule\"]", "dedicated = 1"]
    {
        let error = with(unknown).error();
        assert!(error.contains("of which its pool knows nothing"), "{error}");
    }
}

#[test]
fn invalid_bottlerocket_settings_are_rejected() {
    let rows = [
        ("[settings", "it is not TOML"),
        ("#!/bin/bash\necho hello", "it is not TOML"),
        ("settings = 1", "settings is not a table"),
        ("[settings]\nkubernetes = []", "kubernetes is not a table"),
        ("[settings.kubernetes]\nnode-labels = \"a\"", "node-labels is not a table"),
        ("[settings.kubernetes]\nnode-taints = \"a\"", "node-taints is not a table"),
        ("[settings]\nbootstrap-commands = \"a\"", "bootstrap-commands is not a table"),
    ];
    for (own, expected) in rows {
        let mut case = plain();
        case.class.user_data = own.to_owned();
        case.class.raid0 = true;
        let error = case.error();
        assert!(error.contains(expected), "{own:?}: {error}");
    }
    let error = plain().with(|it| it.class.kubelet.pods_per_core = Some(2)).error();
    assert!(error.contains("podsPerCore has no place"), "{error}");
}

#[test]
fn error_does_not_quote_the_invalid_user_data() {
    let mut case = plain();
    case.class.user_data = "[settings]\npassword = \"hunter2\n".to_owned();
    assert!(!case.error().contains("hunter2"), "{}", case.error());
}

#[test]
fn local_disks_are_mounted_by_a_bootstrap_command() {
    let case = plain().with(|it| {
        it.class.raid0 = true;
        it.class.user_data = "[settings.bootstrap-commands.own]\ncommands = [[\"a\"]]\n".to_owned();
    });
    let commands = &settings(&case)["bootstrap-commands"];
    let mount = &commands["000-mount-instance-storage"];
    assert_eq!(mount["commands"][0], value("[\"apiclient\", \"ephemeral-storage\", \"init\"]"));
    assert_eq!((&mount["essential"], &mount["mode"]), (&value("true"), &value("\"always\"")));
    assert_eq!(commands["own"], value("{commands = [[\"a\"]]}"));
    assert!(!settings(&plain()).contains_key("bootstrap-commands"));
}

#[test]
fn only_old_images_get_the_list_of_bind_directories() {
    // Rule 27: images from 1.46.0 on know the directories. A version of two numbers is invalid.
    let name = |name: &str| ImageTerm::Search {
        name: Some(name.to_owned()),
        owner: None,
        tags: super::fixture::labels(&[]),
    };
    let of = |version: &str| vec![alias(AmiFamily::Bottlerocket, version)];
    let id = || vec![ImageTerm::Id("ami-1".to_owned())];
    let rows: [(Vec<ImageTerm>, Option<&str>, bool); 16] = [
        (of("v1.45.0"), None, true),
        (of("1.45.9"), None, true),
        (of("v1.46.0"), None, false),
        (of("1.46.0"), None, false),
        (of("1.46.1"), None, false),
        (of("2.0.0"), None, false),
        (of("1.9.0"), None, true),
        (of("1.46"), None, true),
        (of("1.46.0.1"), None, true),
        (of("new"), None, true),
        (of("latest"), None, false),
        (of("latest"), Some("bottlerocket-aws-k8s-1.33-x86_64-v1.45.0-431fe75a"), true),
        (id(), Some("bottlerocket-aws-k8s-1.33-x86_64-v1.46.0-431fe75a"), false),
        (id(), None, true),
        (vec![name("bottlerocket-aws-k8s-1.33-*-v1.50.2-*")], None, false),
        (vec![name("bottlerocket-*")], None, true),
    ];
    for (images, image_name, has_directories) in rows {
        let mut case = plain();
        case.class.raid0 = true;
        case.class.images = images;
        case.image_name = image_name.map(str::to_owned);
        let bind =
            &settings(&case)["bootstrap-commands"]["000-mount-instance-storage"]["commands"][1];
        let expected = match has_directories {
            true => {
                "[\"apiclient\", \"ephemeral-storage\", \"bind\", \"--dirs\", \
                 \"/var/lib/containerd\", \"/var/lib/kubelet\", \"/var/log/pods\"]"
            }
            false => "[\"apiclient\", \"ephemeral-storage\", \"bind\"]",
        };
        assert_eq!(*bind, value(expected), "{:?} {image_name:?}", case.class.images);
    }
}

#[test]
fn all_kubelet_settings_are_rendered_together() {
    let own = kubernetes(set_all_settings);
    assert_eq!(own["max-pods"], value("42"));
    assert_eq!(own["kube-reserved"], value("{cpu = \"90m\"}"));
    assert_eq!(
        own["eviction-hard"],
        value("{\"memory.available\" = \"200Mi\", \"nodefs.available\" = \"7.5%\"}")
    );
}
