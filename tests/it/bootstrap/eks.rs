//! User data of Amazon Linux and Windows nodes, setting by setting.

use jiff::SignedDuration;
use outrigger::bootstrap::{BootstrapError, USER_DATA_MAX};
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::kubelet::{Signal, Threshold};
use outrigger::model::node_class::resolved::Cause;
use outrigger::model::taint::{Effect, Taint};

use super::fixture::{Case, Change, OLD_CA, address, encoded, reserved, set_all_settings};

/// The name of a case, a change of the node, text that the user data must have, and text that it
/// must not have.
pub(super) type Row = (&'static str, Change, &'static [&'static str], &'static [&'static str]);

pub(super) fn check(case: &dyn Fn() -> Case, rows: &[Row]) {
    for (name, change, present, absent) in rows {
        let text = case().with(*change).text();
        for part in *present {
            assert!(text.contains(part), "{name}: {part:?} is not in\n{text}");
        }
        for part in *absent {
            assert!(!text.contains(part), "{name}: {part:?} is in\n{text}");
        }
    }
}

fn al2() -> Case {
    Case::of(AmiFamily::Al2)
}

fn al2023() -> Case {
    Case::of(AmiFamily::Al2023)
}

const AL2: [Row; 14] = [
    ("ENI density", |_| {}, &["--use-max-pods false", "--max-pods=29"], &["--pods-per-core"]),
    (
        "maxPods",
        |it| it.class.kubelet.max_pods = Some(10),
        &["--use-max-pods false", "--max-pods=10"],
        &["--max-pods=29"],
    ),
    (
        "podsPerCore",
        |it| it.class.kubelet.pods_per_core = Some(2),
        &["--pods-per-core=2", "--use-max-pods false"],
        &[],
    ),
    (
        "podsPerCore and maxPods",
        |it| {
            it.class.kubelet.pods_per_core = Some(2);
            it.class.kubelet.max_pods = Some(100);
        },
        &["--max-pods=100 --pods-per-core=2"],
        &[],
    ),
    (
        "systemReserved",
        |it| {
            let own = &mut it.class.kubelet.system_reserved;
            own.insert("cpu".to_owned(), reserved(500, "500m"));
            own.insert("memory".to_owned(), reserved(1 << 30, "1Gi"));
        },
        &["--system-reserved=\"cpu=500m,memory=1Gi\""],
        &[],
    ),
    (
        "kubeReserved",
        |it| {
            let own = &mut it.class.kubelet.kube_reserved;
            own.insert("ephemeral-storage".to_owned(), reserved(2 << 30, "2Gi"));
        },
        &["--kube-reserved=\"ephemeral-storage=2Gi\""],
        &["--system-reserved"],
    ),
    // Rule 28: thresholds are joined with `<`, everything else with `=`.
    (
        "evictionHard",
        |it| {
            let own = &mut it.class.kubelet.eviction_hard;
            own.insert(Signal::MemoryAvailable, Threshold::Share(1000));
            own.insert(Signal::NodefsInodesFree, Threshold::Share(525));
        },
        &["--eviction-hard=\"memory.available<10%,nodefs.inodesFree<5.25%\""],
        &[],
    ),
    (
        "evictionSoft",
        |it| {
            let own = &mut it.class.kubelet.eviction_soft;
            own.insert(Signal::PidAvailable, Threshold::Amount(100, "100".to_owned()));
        },
        &["--eviction-soft=\"pid.available<100\""],
        &["--eviction-hard"],
    ),
    (
        "evictionSoftGracePeriod",
        |it| {
            let own = &mut it.class.kubelet.eviction_soft_grace_period;
            own.insert(Signal::MemoryAvailable, SignedDuration::from_secs(3_690));
            own.insert(Signal::ImagefsAvailable, SignedDuration::from_millis(1_500));
            own.insert(Signal::NodefsAvailable, SignedDuration::ZERO);
        },
        &["\"imagefs.available=1s500ms,memory.available=1h1m30s,nodefs.available=0s\""],
        &[],
    ),
    (
        "evictionMaxPodGracePeriod",
        |it| it.class.kubelet.eviction_max_pod_grace_period = Some(300),
        &["--eviction-max-pod-grace-period=300"],
        &[],
    ),
    (
        "imageGCHighThresholdPercent",
        |it| it.class.kubelet.image_gc_high_threshold_percent = Some(50),
        &["--image-gc-high-threshold=50"],
        &["--image-gc-low"],
    ),
    (
        "imageGCLowThresholdPercent",
        |it| it.class.kubelet.image_gc_low_threshold_percent = Some(50),
        &["--image-gc-low-threshold=50"],
        &["--image-gc-high"],
    ),
    (
        "cpuCFSQuota",
        |it| it.class.kubelet.cpu_cfs_quota = Some(false),
        &["--cpu-cfs-quota=false"],
        &[],
    ),
    ("raid0", |it| it.class.raid0 = true, &["--local-disks raid0"], &[]),
];

#[test]
fn al2_user_data_has_each_kubelet_setting() {
    check(&al2, &AL2);
    assert!(!al2().text().contains("--local-disks"));
}

#[test]
fn cluster_dns_of_the_node_class_overrides_the_discovered_one() {
    // Rule 20: the flag is absent if both are unset.
    let rows: [Row; 5] = [
        ("discovered", |_| {}, &["--dns-cluster-ip '10.100.0.10'"], &["--ip-family"]),
        (
            "given",
            |it| it.class.kubelet.cluster_dns = vec![address("10.0.0.7"), address("10.0.0.8")],
            &["--dns-cluster-ip '10.0.0.7'"],
            &["10.100.0.10", "10.0.0.8"],
        ),
        ("none", |it| it.cluster.dns = None, &[], &["--dns-cluster-ip"]),
        // Rule 21: the cluster decides the IP family, not the address of a DNS cache.
        (
            "IPv6",
            |it| {
                it.cluster.ipv6 = true;
                it.class.kubelet.cluster_dns = vec![address("169.254.20.10")];
            },
            &["--ip-family ipv6", "--dns-cluster-ip '169.254.20.10'"],
            &[],
        ),
        (
            "discovered IPv6",
            |it| {
                it.cluster.ipv6 = true;
                it.cluster.dns = Some(address("fd30::a"));
            },
            &["--ip-family ipv6", "--dns-cluster-ip 'fd30::a'"],
            &[],
        ),
    ];
    check(&al2, &rows);
    let rows: [Row; 2] = [
        (
            "IPv6",
            |it| it.cluster.dns = Some(address("fd30::a")),
            &["clusterDNS:\n        - fd30::a"],
            &[],
        ),
        (
            "given",
            |it| it.class.kubelet.cluster_dns = vec![address("10.0.0.7"), address("10.0.0.8")],
            &["- \"10.0.0.7\"\n        - \"10.0.0.8\""],
            &["10.100.0.10"],
        ),
    ];
    check(&al2023, &rows);
}

#[test]
fn labels_forbidden_to_kubelets_are_left_out() {
    // Rule 17.
    const FORBIDDEN: [&str; 8] = [
        "kubernetes.io/arch",
        "k8s.io/thing",
        "node-restriction.kubernetes.io/thing",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.k8s.aws.k8s.io/thing",
        "sub.node-restriction.kubernetes.io/thing",
        "kops.k8s.io/thing",
    ];
    const ALLOWED: [&str; 4] =
        ["karpenter.k8s.aws/x", "mykubernetes.io/x", "topology.k8s.aws/zone-id", "kubernetes.io"];
    for family in
        [AmiFamily::Al2, AmiFamily::Al2023, AmiFamily::Bottlerocket, AmiFamily::Windows2022]
    {
        let mut case = Case::of(family);
        for key in FORBIDDEN.iter().chain(&ALLOWED) {
            case.labels.insert((*key).to_owned(), "v".to_owned());
        }
        let text = case.text();
        for key in FORBIDDEN {
            assert!(!text.contains(key), "{family:?}: {key} is in\n{text}");
        }
        for key in ALLOWED {
            assert!(text.contains(key), "{family:?}: {key} is not in\n{text}");
        }
    }
}

#[test]
fn do_not_sync_taints_label_is_set_where_user_data_sets_taints() {
    // Rule 18.
    const LABEL: &str = "karpenter.sh/do-not-sync-taints";
    let all = [
        AmiFamily::Al2,
        AmiFamily::Al2023,
        AmiFamily::Bottlerocket,
        AmiFamily::Windows2019,
        AmiFamily::Windows2022,
        AmiFamily::Windows2025,
    ];
    for family in all {
        assert!(Case::of(family).text().contains(LABEL), "{family:?}");
    }
    for case in [
        Case::kubeadm(),
        Case::k3s(None),
        Case::rke2(None),
        Case::talos(super::without_eks::MACHINE),
    ] {
        assert!(case.text().contains(LABEL), "{:?}", case.class.bootstrap);
    }
    assert!(!Case::template("{{ labels }}").text().contains(LABEL));
    assert_eq!(Case::of(AmiFamily::Custom).text(), "");
}

#[test]
fn duplicate_taint_is_rendered_once() {
    let mut case = al2();
    case.taints.push(Taint::new("karpenter.sh/unregistered", Effect::NoExecute));
    let expected =
        "--register-with-taints=\"dedicated=blue:NoSchedule,karpenter.sh/unregistered=:NoExecute\"";
    assert!(case.text().contains(expected), "{}", case.text());
    case.class.family = AmiFamily::Al2023;
    assert_eq!(case.text().matches("karpenter.sh/unregistered").count(), 1);
    case.taints.clear();
    assert!(!case.text().contains("registerWithTaints"));
}

#[test]
fn al2_omits_an_unknown_certificate_authority() {
    // Rule 22: an empty string is no certificate authority.
    let rows: [Row; 1] = [(
        "empty",
        |it| it.cluster.ca = String::new(),
        &["/etc/eks/bootstrap.sh 'prod' \\\n  --dns-cluster-ip"],
        &["--b64-cluster-ca", "--apiserver-endpoint"],
    )];
    check(&al2, &rows);
    assert!(al2().text().contains("--b64-cluster-ca 'LS0t"));
}

#[test]
fn missing_endpoint_or_ca_is_an_error() {
    let eks = [AmiFamily::Al2023, AmiFamily::Bottlerocket, AmiFamily::Windows2022];
    let eks = eks.map(Case::of);
    for case in eks.into_iter().chain([Case::kubeadm()]) {
        let mut own = case.clone();
        own.cluster.ca = String::new();
        assert_eq!(own.render(), Err(BootstrapError::Unknown("certificate authority")));
        own.cluster.endpoint = String::new();
        assert_eq!(own.render(), Err(BootstrapError::Unknown("endpoint")));
    }
    let mut own = Case::rke2(None);
    own.cluster.endpoint = String::new();
    assert_eq!(own.render(), Err(BootstrapError::Unknown("endpoint")));
}

#[test]
fn each_bootstrap_error_has_a_condition_cause() {
    let rows: [(AmiFamily, Change, Cause); 6] = [
        (AmiFamily::Al2023, |it| it.cluster.service_cidr = None, Cause::ClusterCidrUnknown),
        (AmiFamily::Al2023, |it| it.cluster.ca = String::new(), Cause::Unavailable),
        (
            AmiFamily::Bottlerocket,
            |it| it.class.kubelet.pods_per_core = Some(1),
            Cause::UnsupportedKubeletSetting,
        ),
        (AmiFamily::Bottlerocket, |it| it.class.user_data = "[".to_owned(), Cause::UserDataInvalid),
        (
            AmiFamily::Windows2022,
            |it| it.class.user_data = "a".repeat(20_000),
            Cause::UserDataTooLarge,
        ),
        (
            AmiFamily::Al2,
            |it| drop(it.labels.insert("a b".to_owned(), String::new())),
            Cause::UserDataInvalid,
        ),
    ];
    for (family, change, cause) in rows {
        let refused = Case::of(family).with(change).render().expect_err("an error");
        assert_eq!(refused.cause(), cause, "{refused}");
    }
}

#[test]
fn extra_kubelet_settings_need_a_kubelet_configuration_file() {
    let extra = |it: &mut Case| {
        it.class.kubelet.extra.insert("shutdownGracePeriod".to_owned(), "45s".into());
    };
    for family in [AmiFamily::Al2, AmiFamily::Bottlerocket, AmiFamily::Windows2022] {
        let error = Case::of(family).with(extra).error();
        assert!(error.contains("shutdownGracePeriod"), "{error}");
    }
    for case in [Case::kubeadm(), Case::k3s(None), Case::rke2(None)] {
        let error = case.with(extra).error();
        assert!(error.contains("shutdownGracePeriod"), "{error}");
    }
    assert!(
        Case::of(AmiFamily::Al2023).with(extra).text().contains("shutdownGracePeriod: \"45s\"")
    );
    let text = Case::talos(super::without_eks::MACHINE).with(extra).text();
    assert!(text.contains("shutdownGracePeriod: \"45s\""), "{text}");
}

const AL2023: [Row; 17] = [
    // Rule 19: maxPods is always set.
    ("computed maxPods", |_| {}, &["maxPods: 29\n"], &[]),
    ("maxPods", |it| it.class.kubelet.max_pods = Some(7), &["maxPods: 7\n"], &["maxPods: 29"]),
    ("podsPerCore", |it| it.class.kubelet.pods_per_core = Some(2), &["podsPerCore: 2\n"], &[]),
    (
        "systemReserved",
        |it| {
            it.class.kubelet.system_reserved.insert("cpu".to_owned(), reserved(500, "500m"));
        },
        &["systemReserved:\n        cpu: \"500m\"\n"],
        &[],
    ),
    (
        "kubeReserved",
        |it| {
            it.class.kubelet.kube_reserved.insert("pid".to_owned(), reserved(99, "99"));
        },
        &["kubeReserved:\n        pid: \"99\"\n"],
        &[],
    ),
    (
        "evictionHard",
        |it| {
            it.class.kubelet.eviction_hard.insert(Signal::MemoryAvailable, Threshold::Share(1000));
        },
        &["evictionHard:\n        memory.available: \"10%\"\n"],
        &[],
    ),
    (
        "evictionSoft",
        |it| {
            it.class.kubelet.eviction_soft.insert(Signal::MemoryAvailable, Threshold::Share(1000));
        },
        &["evictionSoft:\n        memory.available: \"10%\"\n"],
        &[],
    ),
    (
        "evictionSoftGracePeriod",
        |it| {
            let own = &mut it.class.kubelet.eviction_soft_grace_period;
            own.insert(Signal::MemoryAvailable, SignedDuration::from_mins(1));
        },
        &["evictionSoftGracePeriod:\n        memory.available: \"1m\"\n"],
        &[],
    ),
    (
        "evictionMaxPodGracePeriod",
        |it| it.class.kubelet.eviction_max_pod_grace_period = Some(3),
        &["evictionMaxPodGracePeriod: 3\n"],
        &[],
    ),
    (
        "imageGCHighThresholdPercent",
        |it| it.class.kubelet.image_gc_high_threshold_percent = Some(50),
        &["imageGCHighThresholdPercent: 50\n"],
        &[],
    ),
    (
        "imageGCLowThresholdPercent",
        |it| it.class.kubelet.image_gc_low_threshold_percent = Some(40),
        &["imageGCLowThresholdPercent: 40\n"],
        &[],
    ),
    (
        "cpuCFSQuota",
        |it| it.class.kubelet.cpu_cfs_quota = Some(false),
        &["cpuCFSQuota: false\n"],
        &[],
    ),
    (
        "a text passed through",
        |it| {
            it.class.kubelet.extra.insert("containerLogMaxSize".to_owned(), "50Mi".into());
        },
        &["containerLogMaxSize: \"50Mi\"\n"],
        &[],
    ),
    (
        "a flag passed through",
        |it| {
            it.class.kubelet.extra.insert("serializeImagePulls".to_owned(), false.into());
        },
        &["serializeImagePulls: false\n"],
        &[],
    ),
    (
        "a tree passed through",
        |it| {
            let own = serde_json::json!({"memory.available": "5Mi"});
            it.class.kubelet.extra.insert("evictionMinimumReclaim".to_owned(), own);
        },
        &["evictionMinimumReclaim:\n        memory.available: \"5Mi\"\n"],
        &[],
    ),
    (
        "RAID0",
        |it| it.class.raid0 = true,
        &["instance:\n    localStorage:\n      strategy: RAID0\n"],
        &[],
    ),
    (
        "taints and labels",
        |_| {},
        &[
            "registerWithTaints:\n        - key: dedicated\n          value: blue\n          \
             effect: NoSchedule\n        - key: karpenter.sh/unregistered\n          \
             effect: NoExecute\n",
            "- \"--node-labels=\\\"karpenter.k8s.aws/ec2nodeclass=default,\
             karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,\
             karpenter.sh/nodepool=general,team=blue\\\"\"\n",
        ],
        &["localStorage"],
    ),
];

#[test]
fn al2023_user_data_has_each_kubelet_setting() {
    check(&al2023, &AL2023);
}

#[test]
fn al2023_needs_the_service_cidr() {
    for cidr in [None, Some(String::new())] {
        let mut case = al2023();
        case.cluster.service_cidr = cidr;
        let refused = case.render().expect_err("no service CIDR");
        assert_eq!(refused, BootstrapError::ServiceCidrUnknown);
    }
    assert!(al2023().text().contains("cidr: \"10.100.0.0/16\"\n"));
}

/// Returns the content types of the parts of an archive, without the archive's own.
fn types(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Content-Type: "));
    let all = lines.map(|kind| kind.split(';').next().expect("a type"));
    all.skip(1).collect()
}

#[test]
fn content_type_of_user_data_is_detected_from_its_text() {
    const SHELL: &str = "text/x-shellscript";
    const NODE: &str = "application/node.eks.aws";
    const CLOUD: &str = "text/cloud-config";
    // On AL2 and AL2023. Rule 24, except for user data of only comments and cloud-init
    // configurations.
    let rows: [(&str, &[&str], &[&str]); 10] = [
        ("", &[], &[]),
        ("# nothing\n\n# at all\n", &[], &[]),
        ("#!/bin/bash\n", &[SHELL], &[SHELL]),
        ("#!/bin/bash\necho \"a: b\"", &[SHELL], &[SHELL]),
        ("echo hello", &[SHELL], &[SHELL]),
        ("kind: NodeConfig\n", &[SHELL], &[NODE]),
        ("{kind: NodeConfig}", &[SHELL], &[NODE]),
        ("- a\n- b\n", &[SHELL], &[SHELL]),
        ("#cloud-config\npackages: [a]\n", &[CLOUD], &[CLOUD]),
        (
            "Content-Type: multipart/mixed; boundary=b\n\n\
             --b\nContent-Type: text/cloud-boothook\n\n#!/bin/sh\n--b--\n",
            &["text/cloud-boothook"],
            &["text/cloud-boothook"],
        ),
    ];
    for (own, on_al2, on_al2023) in rows {
        for (family, expected, generated) in
            [(AmiFamily::Al2, on_al2, SHELL), (AmiFamily::Al2023, on_al2023, NODE)]
        {
            let mut case = Case::of(family);
            case.class.user_data = own.to_owned();
            let text = case.text();
            // Rules 23 and 25: the boundary, and the generated part comes last.
            assert!(text.starts_with(
                "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n"
            ));
            assert!(text.ends_with("\n--//--\n"), "{text}");
            assert_eq!(types(&text), [expected, &[generated]].concat(), "{family:?} {own:?}");
        }
    }
}

#[test]
fn mime_archive_is_merged_part_by_part() {
    const OWN: &str = "Content-Type: multipart/mixed;\r\n boundary=\"=_x\"\r\n\
        MIME-Version: 1.0\r\n\r\na preamble\r\n--=_x\r\n\
        Content-Type: text/x-shellscript\r\nContent-Transfer-Encoding: base64\r\n\r\n\
        IyEvYmluL3NoCg==\r\n--=_x\r\n\r\nno type\r\n--=_x--\r\nan epilogue\r\n";
    let mut case = al2();
    case.class.user_data = OWN.to_owned();
    let text = case.text();
    assert!(!text.contains('\r'), "rule 23");
    let merged = "--//\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n\
        IyEvYmluL3NoCg==\n--//\nContent-Type: text/plain\n\nno type\n--//\nContent-Type: text/x-sh";
    assert!(text.contains(merged), "{text}");
    assert!(!text.contains("preamble") && !text.contains("epilogue"));
}

#[test]
fn boundary_in_a_user_part_does_not_end_the_archive() {
    let mut case = al2();
    let inner = case.text();
    case.class.user_data = format!("#!/bin/sh\ncat <<X\n{inner}\n--//--\nX\n");
    let text = case.text();
    assert!(text.contains("boundary=\"///\"") && text.ends_with("\n--///--\n"), "{text}");
}

#[test]
fn malformed_mime_archive_is_rejected() {
    let rows = [
        "MIME-Version: 1.0",
        "MIME-Version: 1.0\nno colon\n\n--b--",
        "MIME-Version: 1.0\n\n--b--",
        "Content-Type: text/plain\n\nhello",
        "Content-Type: multipart/mixed\n\n--b--",
        "Content-Type: multipart/mixed; boundary=\"b\n\n--b--",
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nhello world\n\nx\n--b--",
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nno end of headers",
    ];
    for own in rows {
        for family in [AmiFamily::Al2, AmiFamily::Al2023] {
            let mut case = Case::of(family);
            case.class.user_data = own.to_owned();
            let error = case.error();
            assert!(error.starts_with("merge user data for Amazon Linux 2"), "{own:?}: {error}");
        }
    }
}

#[test]
fn windows_user_data_is_one_powershell_block() {
    let windows = || Case::of(AmiFamily::Windows2025);
    let call = "& $EKSBootstrapScriptFile -EKSClusterName 'prod' -APIServerEndpoint 'https://ABC";
    let rows: [Row; 4] = [
        (
            "empty",
            |_| {},
            &[
                "<powershell>\n[string]$EKSBootstrapScriptFile = \
                 \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n",
                "-DNSClusterIP '10.100.0.10'\n</powershell>\n",
            ],
            &[],
        ),
        (
            "a script",
            |it| it.class.user_data = "Write-Host 'a'".to_owned(),
            &["<powershell>\nWrite-Host 'a'\n[string]"],
            &[],
        ),
        (
            "a block",
            |it| it.class.user_data = "\n<powershell>\nWrite-Host 'a'\n</powershell>\n".to_owned(),
            &["<powershell>\nWrite-Host 'a'\n[string]"],
            &[],
        ),
        (
            "settings",
            set_all_settings,
            &[
                "-KubeletExtraArgs '--node-labels=\"karpenter",
                "--max-pods=42 ",
                "-DNSClusterIP '10.100.0.99'",
            ],
            &[],
        ),
    ];
    check(&windows, &rows);
    assert!(windows().text().contains(call));
    for own in [
        "<powershell>a</powershell><persist>true</persist>",
        "<script>dir</script>",
        "a </PowerShell> b",
    ] {
        let mut case = windows();
        case.class.user_data = own.to_owned();
        assert!(case.error().contains("<powershell> block"), "{}", case.error());
    }
}

#[test]
fn large_user_data_is_compressed_or_rejected() {
    let with_lines = |family: AmiFamily, lines: usize| {
        let mut case = Case::of(family);
        case.class.user_data = match family {
            AmiFamily::Bottlerocket => {
                format!("[settings]\nmotd = \"{}\"\n", "again ".repeat(lines))
            }
            AmiFamily::Windows2022 => "Write-Host 'again'\n".repeat(lines),
            _ => format!("#!/bin/bash\n{}", "echo again\n".repeat(lines)),
        };
        case
    };
    for family in [AmiFamily::Al2, AmiFamily::Al2023, AmiFamily::Bottlerocket, AmiFamily::Custom] {
        let plain = with_lines(family, 1_000).render().expect("user data below the limit");
        assert!(!plain.0.starts_with(&[0x1f, 0x8b]) && plain.0.len() <= USER_DATA_MAX);
        let packed = with_lines(family, 4_000).render().expect("compressed user data");
        assert!(packed.0.starts_with(&[0x1f, 0x8b]) && packed.0.len() <= USER_DATA_MAX);
        assert_eq!(packed, with_lines(family, 4_000).render().expect("compressed user data"));
    }
    let error = with_lines(AmiFamily::Windows2022, 1_000).error();
    assert!(error.contains("bytes and its image unpacks none, EC2 takes 16384"), "{error}");
    // Unknown user data may be for Ignition, which does not decompress it.
    let mut case = Case::of(AmiFamily::Custom);
    case.class.user_data = format!("{{\"ignition\": \"{}\"}}", "x".repeat(USER_DATA_MAX));
    assert!(case.error().contains("its image unpacks none"));
    // Random text, which compression cannot reduce to the limit.
    let mut rng = fastrand::Rng::with_seed(7);
    let noise: String = (0..60_000).map(|_| rng.alphanumeric()).collect();
    let mut case = al2();
    case.class.user_data = format!("#!/bin/bash\n# {noise}\n");
    let Err(BootstrapError::TooLarge { size, packed: Some(packed) }) = case.render() else {
        panic!("the error must have both sizes");
    };
    assert!(size > 60_000 && packed > USER_DATA_MAX && packed < size);
}

#[test]
fn user_data_of_a_custom_image_is_unchanged() {
    let own = "{{ token }} $(x) \r\n--//--\n";
    let mut case = Case::of(AmiFamily::Custom);
    case.class.user_data = own.to_owned();
    assert_eq!(case.text(), own);
}

#[test]
fn user_data_differs_if_a_setting_differs() {
    // The name of a launch template is a hash of its content: different settings must give
    // different bytes, and equal settings equal bytes (rule 29).
    for family in
        [AmiFamily::Al2, AmiFamily::Al2023, AmiFamily::Bottlerocket, AmiFamily::Windows2022]
    {
        let plain = Case::of(family).with(set_all_settings).text();
        assert_eq!(plain, Case::of(family).with(set_all_settings).text());
        let mut other = Case::of(family).with(set_all_settings);
        other.class.kubelet.max_pods = Some(43);
        assert_ne!(plain, other.text());
        let other = Case::of(family).with(set_all_settings).with(|it| {
            it.taints.pop();
        });
        assert_ne!(plain, other.text());
        // After a change of the certificate authority, only new nodes get the new one.
        let other = Case::of(family).with(set_all_settings).with(|it| {
            it.cluster.ca = encoded(OLD_CA);
        });
        assert_ne!(plain, other.text());
    }
}
