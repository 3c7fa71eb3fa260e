//! Capacity of instance types under the settings of a node class: the rules of spec/aws.md §4.3 and
//! §4.4 and the cases of §12.7.

use std::collections::BTreeMap;

use super::{GIB, MIB, shape};
use outrigger::catalog::capacity::{
    allocatable, capacity, default_node_class, kube_reserved, max_pods_per_node,
};
use outrigger::catalog::instance_type_info::{Gpu, InstanceTypeSpec, Neuron};
use outrigger::model::instance::Arch;
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::bootstrap::{AgentBootstrap, Bootstrap, SecretSource};
use outrigger::model::node_class::disk::BlockDevice;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::kubelet::{Reserved, Signal, Threshold};
use outrigger::model::node_class::network::NetworkInterface;

/// A change of a node class.
type Change = fn(&mut NodeClass);

const FAMILIES: [AmiFamily; 7] = [
    AmiFamily::Al2,
    AmiFamily::Al2023,
    AmiFamily::Bottlerocket,
    AmiFamily::Windows2019,
    AmiFamily::Windows2022,
    AmiFamily::Windows2025,
    AmiFamily::Custom,
];

fn class_of(family: AmiFamily) -> NodeClass {
    NodeClass { family, ..NodeClass::default() }
}

fn class_with(change: impl FnOnce(&mut NodeClass)) -> NodeClass {
    let mut class = default_node_class();
    change(&mut class);
    class
}

fn reserved(all: &[(&str, i64)]) -> BTreeMap<String, Reserved> {
    let one = |(name, amount): &(&str, i64)| {
        let text = amount.to_string();
        let amount = *amount;
        ((*name).to_owned(), Reserved { amount, text })
    };
    all.iter().map(one).collect()
}

fn bootstraps_without_eks() -> [Bootstrap; 4] {
    let agent = AgentBootstrap { server: None, token: SecretSource::Minted, version: None };
    let token = SecretSource::Minted;
    [
        Bootstrap::Kubeadm { token },
        Bootstrap::K3s(agent.clone()),
        Bootstrap::Rke2(agent),
        Bootstrap::Custom { template: String::new(), token: None },
    ]
}

/// An m5.large has 3 interfaces of 10 addresses, hence 29 pods; 2 cores; 8,192 MiB, of which the
/// hypervisor and the kernel leave 7,577.
#[test]
fn max_pods_follow_the_settings() {
    let m5 = shape("m5.large");
    for family in FAMILIES {
        let is_windows = family.windows_build().is_some();
        let by_default = if is_windows { 110 } else { 29 };
        assert_eq!(max_pods_per_node(&m5, &class_of(family)), by_default, "{family:?}");
        let mut class = class_of(family);
        class.reserved_enis = 1;
        let reserved = if is_windows { 110 } else { 20 };
        assert_eq!(max_pods_per_node(&m5, &class), reserved, "{family:?}");
        class.reserved_enis = 9;
        let none = if is_windows { 110 } else { 0 };
        assert_eq!(max_pods_per_node(&m5, &class), none, "{family:?}");
        class.kubelet.max_pods = Some(7);
        assert_eq!(max_pods_per_node(&m5, &class), 7, "{family:?}");
        class.kubelet.pods_per_core = Some(3);
        let per_core = if family == AmiFamily::Bottlerocket { 7 } else { 6 };
        assert_eq!(max_pods_per_node(&m5, &class), per_core, "{family:?}");
        class.kubelet.pods_per_core = Some(4);
        assert_eq!(max_pods_per_node(&m5, &class), 7, "{family:?}");
        class.kubelet.pods_per_core = Some(0);
        assert_eq!(max_pods_per_node(&m5, &class), 7, "{family:?}");
    }
    // Two cards, all pods on the first: far fewer pods than on all interfaces (spec §10, 34).
    assert_eq!(max_pods_per_node(&shape("p5.48xlarge"), &default_node_class()), 100);
}

/// EFA-only adapters use an interface of the card that pods use, and of no other (spec §10, 35). An
/// interface layout without adapters disables EFA, and no layout does not (36).
#[test]
fn efa_adapters_follow_the_network_interface_layout() {
    let p5 = shape("p5.48xlarge");
    let adapter = |card| NetworkInterface { card, device: 1, efa_only: true };
    let plain_eni = NetworkInterface { efa_only: false, ..adapter(0) };
    let rows: [(Option<Vec<NetworkInterface>>, i64, i64); 5] = [
        (None, 100, 32),
        (Some(vec![]), 100, 0),
        (Some(vec![plain_eni]), 100, 0),
        (Some(vec![adapter(1), adapter(2)]), 100, 2),
        (Some(vec![adapter(0), adapter(1)]), 51, 2),
    ];
    for (layout, max_pods, adapters) in rows {
        let class = class_with(|own| own.network_interfaces.clone_from(&layout));
        let all = capacity(&p5, &class, None);
        let own = (all.pods, all.get("vpc.amazonaws.com/efa"));
        assert_eq!(own, (max_pods, adapters), "{layout:?}");
    }
}

/// Memory in kube-reserved: on Amazon Linux and custom images, for the number of pods that the
/// interfaces allow, independent of other settings (spec §10, 31). On other families, for the
/// maximum number of pods.
#[test]
fn kube_reserved_follows_the_image_family() {
    let m5 = shape("m5.large");
    for family in FAMILIES {
        let by_interfaces =
            matches!(family, AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom);
        let mut class = class_of(family);
        let plain = if family.windows_build().is_some() { 110 } else { 29 };
        let own = kube_reserved(&m5, &class);
        assert_eq!(own["memory"], (11 * plain + 255) * MIB, "{family:?}");
        class.kubelet.max_pods = Some(100);
        class.reserved_enis = 1;
        let pods = if by_interfaces { 29 } else { 100 };
        let own = kube_reserved(&m5, &class);
        assert_eq!(own["memory"], (11 * pods + 255) * MIB, "{family:?}");
        assert_eq!((own["cpu"], own["ephemeral-storage"]), (70, GIB));
        class.kubelet.kube_reserved = reserved(&[("memory", 5 * MIB), ("pid", 9)]);
        let own = kube_reserved(&m5, &class);
        assert_eq!((own["memory"], own["cpu"], own["pid"]), (5 * MIB, 70, 9));
    }
}

/// 6 % of the first core, 1 % of the second, and so on. Each band is rounded to whole millicores
/// (spec §10, 32).
#[test]
fn kube_reserved_cpu_is_rounded_per_band() {
    let rows = [(1, 60), (2, 70), (3, 75), (4, 80), (5, 82), (6, 85), (7, 87), (96, 310)];
    for (vcpu, kept) in rows {
        let shape = InstanceTypeSpec::new("x.large", Arch::Amd64, vcpu, 1024);
        assert_eq!(kube_reserved(&shape, &default_node_class())["cpu"], kept, "{vcpu}");
    }
}

/// A change of a node class, and the allocatable memory of an m5.large in MiB: of 7,577,
/// kube-reserved takes 574 and the eviction threshold 100.
const OVERHEADS: [(&str, Change, i64); 13] = [
    ("as it comes", |_| {}, 6903),
    ("system reserved", |own| own.kubelet.system_reserved = reserved(&[("memory", 3 * MIB)]), 6900),
    ("kube reserved", |own| own.kubelet.kube_reserved = reserved(&[("memory", 74 * MIB)]), 7403),
    (
        "hard threshold as an amount",
        |own| set_hard(own, Signal::MemoryAvailable, amount(500)),
        6503,
    ),
    (
        "hard threshold in per cent, rounded up to a byte",
        |own| set_hard(own, Signal::MemoryAvailable, share(1_000)),
        6245,
    ),
    (
        "all means that it is switched off",
        |own| set_hard(own, Signal::MemoryAvailable, share(10_000)),
        7003,
    ),
    (
        "a threshold of something else leaves the default",
        |own| set_hard(own, Signal::NodefsAvailable, share(500)),
        6903,
    ),
    (
        "soft thresholds take nothing",
        |own| {
            set_soft(own, Signal::MemoryAvailable, amount(500));
            set_soft(own, Signal::NodefsAvailable, share(5_000));
        },
        6903,
    ),
    (
        "soft beside hard",
        |own| {
            set_hard(own, Signal::MemoryAvailable, share(500));
            set_soft(own, Signal::MemoryAvailable, share(1_000));
        },
        6624,
    ),
    ("soft at all", |own| set_soft(own, Signal::MemoryAvailable, share(10_000)), 6903),
    (
        "another share for the hypervisor",
        |own| own.vm_overhead_per_mille = Some(0),
        8192 - 574 - 100,
    ),
    (
        "more than there is",
        |own| own.kubelet.system_reserved = reserved(&[("memory", 99 * GIB)]),
        0,
    ),
    (
        "as much as can be counted",
        |own| {
            own.kubelet.system_reserved = reserved(&[("memory", i64::MAX)]);
            own.kubelet.kube_reserved = reserved(&[("memory", i64::MAX)]);
            set_hard(own, Signal::MemoryAvailable, amount(i64::MAX / MIB));
        },
        0,
    ),
];

fn share(hundredths: u32) -> Threshold {
    Threshold::Share(hundredths)
}

fn amount(mib: i64) -> Threshold {
    Threshold::Amount(mib * MIB, format!("{mib}Mi"))
}

fn set_hard(own: &mut NodeClass, signal: Signal, threshold: Threshold) {
    own.kubelet.eviction_hard.insert(signal, threshold);
}

fn set_soft(own: &mut NodeClass, signal: Signal, threshold: Threshold) {
    own.kubelet.eviction_soft.insert(signal, threshold);
}

#[test]
fn memory_overhead_follows_the_settings() {
    for (what, change, mib) in OVERHEADS {
        let class = class_with(change);
        let left = allocatable(&shape("m5.large"), &class, None);
        assert_eq!(left.memory.div_euclid(MIB), mib, "{what}");
        let all = capacity(&shape("m5.large"), &class, None);
        assert!(left.memory <= all.memory, "{what}");
    }
}

/// Soft thresholds on Bottlerocket reserve nothing either, though its kube-reserved follows the
/// maximum number of pods.
#[test]
fn soft_eviction_thresholds_reserve_nothing_on_bottlerocket() {
    let mut class = class_of(AmiFamily::Bottlerocket);
    let before = allocatable(&shape("m5.large"), &class, None);
    let soft = Threshold::Share(3_000);
    class.kubelet.eviction_soft.insert(Signal::MemoryAvailable, soft);
    assert_eq!(allocatable(&shape("m5.large"), &class, None), before);
}

/// The disk keeps a tenth free, rounded up to a byte, and kube-reserved. User values replace both.
#[test]
fn disk_eviction_threshold_is_rounded_up_to_a_byte() {
    let mut class = class_with(|own| {
        own.block_devices = vec![BlockDevice {
            name: "/dev/xvda".into(),
            size: Some(20 * GIB + 1),
            ..BlockDevice::default()
        }];
    });
    let left = |class: &NodeClass| allocatable(&shape("m5.large"), class, None).ephemeral_storage;
    assert_eq!(left(&class), 20 * GIB + 1 - (2 * GIB + 1) - GIB);
    let half = Threshold::Share(5_000);
    class.kubelet.eviction_hard.insert(Signal::NodefsAvailable, half);
    class.kubelet.kube_reserved = reserved(&[("ephemeral-storage", 0)]);
    assert_eq!(left(&class), 10 * GIB);
}

/// Firmware memory of an Arm instance is subtracted before the hypervisor's share is rounded up
/// (spec §10, 30).
#[test]
fn firmware_memory_is_subtracted_before_the_vm_overhead() {
    // 2,048 − 64 = 1,984, of which 148.8 are overhead, rounded to 149.
    assert_eq!(capacity(&shape("a1.medium"), &default_node_class(), None).memory, 1835 * MIB);
    assert_eq!(capacity(&shape("m5.large"), &default_node_class(), None).memory, 7577 * MIB);
}

/// The memory that nodes reported replaces the estimate. Thresholds in per cent still use the
/// estimate.
#[test]
fn reported_memory_replaces_the_estimate() {
    let m5 = shape("m5.large");
    let class = class_with(|own| {
        let tenth = Threshold::Share(1_000);
        own.kubelet.eviction_hard.insert(Signal::MemoryAvailable, tenth);
    });
    let reported = 7700 * MIB;
    assert_eq!(capacity(&m5, &class, Some(reported)).memory, reported);
    let kept = (7577 * MIB * 10 + 99) / 100;
    let left = allocatable(&m5, &class, Some(reported)).memory;
    assert_eq!(left, reported - 574 * MIB - kept);
}

/// The volume with the kubelet's data: local disks, then the marked volume, then the family's
/// device or the last one, then the family's default.
#[test]
fn ephemeral_storage_follows_disks_and_family() {
    let disk = |name: &str, gib: i64, root_volume: bool| BlockDevice {
        name: name.into(),
        size: (gib > 0).then_some(gib * GIB),
        root_volume,
        ..BlockDevice::default()
    };
    let rows: [(AmiFamily, &[BlockDevice], i64); 16] = [
        (AmiFamily::Al2, &[], 20),
        (AmiFamily::Al2023, &[], 20),
        (AmiFamily::Bottlerocket, &[], 20),
        (AmiFamily::Windows2022, &[], 50),
        (AmiFamily::Custom, &[], 20),
        (AmiFamily::Al2023, &[disk("/dev/xvda", 60, false)], 60),
        (AmiFamily::Al2023, &[disk("/dev/xvdc", 60, false)], 20),
        (AmiFamily::Windows2019, &[disk("/dev/sda1", 60, false)], 60),
        (
            AmiFamily::Bottlerocket,
            &[disk("/dev/xvda", 60, false), disk("/dev/xvdb", 70, false)],
            70,
        ),
        // The size is unset: EC2 takes it from a snapshot.
        (AmiFamily::Al2, &[disk("/dev/xvda", 0, false)], 20),
        (AmiFamily::Al2023, &[disk("/dev/xvda", 0, false)], 20),
        (AmiFamily::Bottlerocket, &[disk("/dev/xvdb", 0, false)], 20),
        (AmiFamily::Custom, &[disk("/dev/xvda", 0, false)], 20),
        (AmiFamily::Custom, &[disk("/dev/xvda", 60, false), disk("/dev/xvdb", 70, false)], 70),
        (AmiFamily::Custom, &[disk("/dev/xvda", 60, true), disk("/dev/xvdb", 70, false)], 60),
        (AmiFamily::Al2023, &[disk("/dev/xvda", 60, false), disk("/dev/xvdb", 70, true)], 70),
    ];
    let m5d = shape("m5d.large");
    for (family, disks, gib) in rows {
        let mut class = class_of(family);
        class.block_devices = disks.to_vec();
        let own = capacity(&m5d, &class, None).ephemeral_storage;
        assert_eq!(own, gib * GIB, "{family:?} {disks:?}");
        // 75 GB, not GiB (spec §10, 37). A type without local disks has no array.
        class.raid0 = true;
        let own = capacity(&m5d, &class, None).ephemeral_storage;
        assert_eq!(own, 75_000_000_000, "{family:?}");
        let own = capacity(&shape("m5.large"), &class, None).ephemeral_storage;
        assert_eq!(own, gib * GIB, "{family:?}");
    }
}

/// Devices of several kinds are counted together, each resource by its manufacturer (spec §10, 39).
#[test]
fn devices_are_counted_by_manufacturer() {
    let gpu = |manufacturer: &str, count| Gpu {
        name: "x".into(),
        manufacturer: manufacturer.into(),
        count,
        memory_mib: 1024,
    };
    let neuron = |devices, cores| Neuron { name: None, devices, cores };
    let it = InstanceTypeSpec {
        gpus: vec![
            gpu("NVIDIA", 2),
            gpu("NVIDIA", 3),
            gpu("AMD", 1),
            gpu("Habana", 4),
            gpu("nvidia", 9),
        ],
        neurons: vec![neuron(2, 8), neuron(1, 2)],
        ..InstanceTypeSpec::new("x.large", Arch::Amd64, 2, 1024)
    };
    let own: Vec<String> = capacity(&it, &default_node_class(), None)
        .extended
        .iter()
        .map(|(name, amount)| format!("{name} {amount}"))
        .collect();
    assert_eq!(
        own,
        [
            "amd.com/gpu 1",
            "aws.amazon.com/neuron 3",
            "aws.amazon.com/neuroncore 8",
            "habana.ai/gaudi 4",
            "nvidia.com/gpu 5"
        ]
    );
}

/// Windows nodes have an address for each pod as a separate resource. t3 has no trunk interfaces.
#[test]
fn windows_nodes_have_ipv4_addresses_as_a_resource() {
    let name = "vpc.amazonaws.com/PrivateIPv4Address";
    for family in FAMILIES {
        let addresses = if family.windows_build().is_some() { 9 } else { 0 };
        let own = capacity(&shape("m5.large"), &class_of(family), None);
        assert_eq!(own.get(name), addresses, "{family:?}");
    }
    let pod_eni =
        |name| capacity(&shape(name), &default_node_class(), None).get("vpc.amazonaws.com/pod-eni");
    assert_eq!((pod_eni("t3.large"), pod_eni("m5.large")), (0, 9));
}

/// Clusters without EKS: pods have addresses of an overlay network, and the kubelet reserves only
/// what is configured (spec §9.2, 4).
#[test]
fn clusters_without_eks_reserve_only_what_is_configured() {
    let m5 = shape("m5.large");
    for bootstrap in bootstraps_without_eks() {
        let mut class = class_of(AmiFamily::Custom);
        class.bootstrap = bootstrap;
        assert_eq!(max_pods_per_node(&m5, &class), 110);
        assert_eq!(kube_reserved(&m5, &class), BTreeMap::new());
        let left = allocatable(&m5, &class, None);
        assert_eq!((left.cpu_milli, left.memory), (2000, 7477 * MIB));
        class.kubelet.max_pods = Some(250);
        class.kubelet.kube_reserved = reserved(&[("cpu", 100), ("memory", 477 * MIB)]);
        let left = allocatable(&m5, &class, None);
        assert_eq!((left.cpu_milli, left.memory), (1900, 7000 * MIB));
        assert_eq!(left.pods, 250);
    }
    let mut class = class_of(AmiFamily::Custom);
    class.bootstrap = Bootstrap::Talos { machine_config: SecretSource::Minted };
    let left = allocatable(&m5, &class, None);
    assert_eq!((left.cpu_milli, left.memory), (1950, (7477 - 384) * MIB));
    class.kubelet.system_reserved = reserved(&[("pid", 100)]);
    let left = allocatable(&m5, &class, None);
    assert_eq!((left.cpu_milli, left.memory), (2000, 7477 * MIB));
}
