//! Stable hashes of pools and node classes, which detect drift and in-place changes.
//!
//! Each pool and node class has two hashes: one of the fields that require a new instance, and one
//! of the fields that can be updated in place. docs/decisions/017-what-drifts.md explains which
//! field is in which hash.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::Value;

use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;
use crate::model::node_class::NodeClass;
use crate::model::node_class::kubelet::{KubeletSettings, Reserved, Signal, Threshold};
use crate::model::pool::Pool;
use crate::model::taint::Taint;

/// Version of the hashed fields and their encoding. A change of either requires a new version.
const VERSION: &str = "v2";

/// FNV-1a of a string. The hasher of std may change with the compiler, but tags must be stable.
pub fn fnv1a(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Derives a number below `limit` from a string. Most strings have different numbers.
pub fn spread_below(text: &str, limit: u64) -> u64 {
    // The low bits of the hash are similar for similar strings.
    let mixed = fnv1a(text).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    mixed.checked_rem(limit).unwrap_or(0)
}

/// The hashes of a pool or node class. A tag or annotation holds them as `v2:…:…`, together with
/// their version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// Hash of the fields that require a new instance.
    pub fixed: u64,
    /// Hash of the fields that can be updated in place.
    pub in_place: u64,
}

impl fmt::Display for Hashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}:{:016x}:{:016x}", self.fixed, self.in_place)
    }
}

/// The string holds no hashes, or hashes of a different version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherVersion;

impl FromStr for Hashes {
    type Err = OtherVersion;

    fn from_str(text: &str) -> Result<Self, OtherVersion> {
        let mut parts = text.split(':');
        let (version, fixed, in_place) = (parts.next(), parts.next(), parts.next());
        if version != Some(VERSION) || parts.next().is_some() {
            return Err(OtherVersion);
        }
        Ok(Self { fixed: parse_hash(fixed)?, in_place: parse_hash(in_place)? })
    }
}

fn parse_hash(part: Option<&str>) -> Result<u64, OtherVersion> {
    let hex = part.filter(|hex| hex.len() == 16).ok_or(OtherVersion)?;
    u64::from_str_radix(hex, 16).map_err(|_| OtherVersion)
}

/// The change since a node was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No relevant change.
    None,
    /// The hashes are missing or have a different version: the change is unknown, and the hashes
    /// are written again.
    Unknown,
    /// Only fields that can be updated in place.
    InPlace,
    /// Fields that require a new instance: the node has drifted.
    Drifted,
}

impl Hashes {
    /// Returns the change since these hashes were written.
    pub fn change_since(&self, written: &str) -> Change {
        match written.parse::<Self>() {
            Err(OtherVersion) => Change::Unknown,
            Ok(old) if old.fixed != self.fixed => Change::Drifted,
            Ok(old) if old.in_place != self.in_place => Change::InPlace,
            Ok(_) => Change::None,
        }
    }
}

/// The hashed fields, one per line. Default values are omitted, so that a new field does not change
/// existing hashes.
#[derive(Default)]
struct Text(String);

impl Text {
    fn put_field<T: Debug + Default + PartialEq>(&mut self, name: &str, value: &T) {
        if *value != T::default() {
            // Writing to a String cannot fail.
            let _ = writeln!(self.0, "{name}={value:?}");
        }
    }

    fn hash(&self) -> u64 {
        fnv1a(&self.0)
    }
}

/// Formats the items and sorts the strings.
fn sorted_texts<T>(items: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
    let mut texts: Vec<String> = items.iter().map(text).collect();
    texts.sort_unstable();
    texts
}

/// Hashes of a pool. Its requirements are not included: they are compared with the labels of nodes.
pub fn pool_hashes(pool: &Pool) -> Hashes {
    let (mut fixed, mut in_place) = (Text::default(), Text::default());
    let class = pool.node_class.as_ref();
    fixed.put_field("node_class", &class.map(|class| class.as_str()));
    in_place.put_field("labels", &pool.labels);
    in_place.put_field("annotations", &pool.annotations);
    let startup_taints = sorted_texts(&pool.startup_taints, Taint::to_string);
    in_place.put_field("taints", &sorted_texts(&pool.taints, Taint::to_string));
    in_place.put_field("startup_taints", &startup_taints);
    in_place.put_field("expire_after", &pool.expire_after.map(|age| age.as_secs()));
    let expire_hard = pool.expire_hard_after.map(|age| age.as_secs());
    in_place.put_field("expire_hard_after", &expire_hard);
    let grace = pool.termination_grace_period.map(|grace| grace.as_secs());
    in_place.put_field("termination_grace_period", &grace);
    Hashes { fixed: fixed.hash(), in_place: in_place.hash() }
}

/// Hashes of a node class. The resolved AWS resources are not included: they are compared with the
/// instance.
pub fn node_class_hashes(class: &NodeClass) -> Hashes {
    // Every field is named, so that a new field must be assigned to a hash.
    let NodeClass {
        name: _,
        family,
        images: _,
        subnets: _,
        security_groups: _,
        reservations: _,
        placement_group,
        identity,
        public_ip,
        ip_prefix_count: _,
        user_data,
        bootstrap,
        tags,
        kubelet,
        block_devices,
        raid0,
        network_interfaces,
        detailed_monitoring,
        metadata,
        connection_tracking,
        context,
        nested_virtualization,
        reserved_enis: _,
        vm_overhead_per_mille: _,
    } = class;
    let (mut fixed, mut in_place) = (Text::default(), Text::default());
    fixed.put_field("family", family);
    fixed.put_field("placement_group", placement_group);
    fixed.put_field("identity", identity);
    fixed.put_field("public_ip", public_ip);
    fixed.put_field("user_data", user_data);
    fixed.put_field("bootstrap", bootstrap);
    fixed.put_field("kubelet", &canonical_kubelet(kubelet));
    fixed.put_field("block_devices", &sorted_texts(block_devices, |device| format!("{device:?}")));
    fixed.put_field("raid0", raid0);
    let interfaces = network_interfaces.as_deref().unwrap_or_default();
    fixed.put_field(
        "network_interfaces",
        &sorted_texts(interfaces, |interface| format!("{interface:?}")),
    );
    fixed.put_field("detailed_monitoring", detailed_monitoring);
    fixed.put_field("metadata", metadata);
    // The crate may change its formatting of durations.
    let tracked = connection_tracking.map(|tracking| {
        [tracking.tcp_established, tracking.udp_stream, tracking.udp]
            .map(|timeout| timeout.map(|timeout| timeout.as_secs()))
    });
    fixed.put_field("connection_tracking", &tracked.unwrap_or_default());
    fixed.put_field("context", context);
    fixed.put_field("nested_virtualization", nested_virtualization);
    in_place.put_field("tags", tags);
    Hashes { fixed: fixed.hash(), in_place: in_place.hash() }
}

/// Kubelet settings in canonical form: `1` and `1000m` are equal, and the order of object keys is
/// irrelevant.
fn canonical_kubelet(kubelet: &KubeletSettings) -> String {
    let KubeletSettings {
        cluster_dns,
        max_pods,
        pods_per_core,
        system_reserved,
        kube_reserved,
        eviction_hard,
        eviction_soft,
        eviction_soft_grace_period,
        eviction_max_pod_grace_period,
        image_gc_high_threshold_percent,
        image_gc_low_threshold_percent,
        cpu_cfs_quota,
        extra,
    } = kubelet;
    let mut text = Text::default();
    text.put_field("cluster_dns", cluster_dns);
    text.put_field("max_pods", max_pods);
    text.put_field("pods_per_core", pods_per_core);
    text.put_field("system_reserved", &reserved_amounts(system_reserved));
    text.put_field("kube_reserved", &reserved_amounts(kube_reserved));
    text.put_field("eviction_hard", &eviction_thresholds(eviction_hard));
    text.put_field("eviction_soft", &eviction_thresholds(eviction_soft));
    let graces = eviction_soft_grace_period
        .iter()
        .map(|(signal, period)| (signal.as_str(), period.as_millis()));
    text.put_field("grace", &graces.collect::<Vec<_>>());
    text.put_field("max_grace", eviction_max_pod_grace_period);
    text.put_field("gc_high", image_gc_high_threshold_percent);
    text.put_field("gc_low", image_gc_low_threshold_percent);
    text.put_field("cpu_cfs_quota", cpu_cfs_quota);
    for (name, value) in extra {
        text.put_field(name, &ordered_json(value));
    }
    text.0
}

/// The quantities of reservations, by name.
fn reserved_amounts(reservations: &BTreeMap<String, Reserved>) -> Vec<(&str, i64)> {
    reservations.iter().map(|(name, reserved)| (name.as_str(), reserved.amount)).collect()
}

/// Eviction thresholds as `signal<quantity` or `signal<hundredths/10000`.
fn eviction_thresholds(thresholds: &BTreeMap<Signal, Threshold>) -> Vec<String> {
    thresholds
        .iter()
        .map(|(signal, threshold)| match threshold {
            Threshold::Share(share) => format!("{}<{share}/10000", signal.as_str()),
            Threshold::Amount(amount, _) => format!("{}<{amount}", signal.as_str()),
        })
        .collect()
}

/// JSON with sorted object keys.
fn ordered_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut parts: Vec<String> = fields
                .iter()
                .map(|(key, nested)| format!("{key:?}:{}", ordered_json(nested)))
                .collect();
            parts.sort_unstable();
            format!("{{{}}}", parts.join(","))
        }
        Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(ordered_json).collect();
            format!("[{}]", parts.join(","))
        }
        other => other.to_string(),
    }
}

/// Hashes of a pool, formatted for a tag.
pub fn pool_hash(pool: &Pool) -> String {
    pool_hashes(pool).to_string()
}

/// Hashes of a node class, formatted for a tag. Without a node class, the hashes of an empty list
/// of fields.
pub fn node_class_hash(class: Option<&NodeClass>) -> String {
    class.map_or_else(|| format!("{VERSION}:none"), |class| node_class_hashes(class).to_string())
}

/// ID of a cluster configuration. It covers only the settings that can disrupt nodes: drift
/// ([`Change::Drifted`]), a smaller number of nodes, or a different age.
pub fn change_id(cluster: &Cluster) -> String {
    let mut text = Text::default();
    text.put_field("cluster", &cluster.name.as_str());
    for pool in &cluster.pools {
        let (pool_hash, class_hash) = hashes_in(cluster, pool);
        let [pool_hash, class_hash] = [pool_hash, class_hash]
            .map(|text| text.parse::<Hashes>().map_or(0, |hashes| hashes.fixed));
        let wants = (
            pool_hash,
            class_hash,
            &pool.requirements,
            pool.replicas,
            [pool.expire_after, pool.expire_hard_after].map(|age| age.map(|age| age.as_secs())),
        );
        let _ = writeln!(text.0, "{}={wants:?}", pool.name);
    }
    format!("{:016x}", text.hash())
}

/// ID of an approval that is not for a configuration: the cluster, the kind of the held items, and
/// a hash of the held items.
pub fn accept_id<'a>(
    cluster: &ClusterName,
    kind: &str,
    parts: impl IntoIterator<Item = &'a str>,
) -> String {
    let mut text = Text::default();
    for part in parts {
        text.put_field(kind, &part);
    }
    format!("{cluster}/{kind}/{:016x}", text.hash())
}

/// The cluster in an ID of [`accept_id`]. `None` for the ID of a configuration.
pub fn accepted_cluster(id: &str) -> Option<&str> {
    let (prefix, _) = id.rsplit_once('/')?;
    prefix.rsplit_once('/').map(|(cluster, _)| cluster)
}

/// Creates the claim record of a claim that matches its pool: ID, creation time, reason and command
/// ID are given.
pub fn record_in(
    cluster: &Cluster,
    pool: &Pool,
    id: &str,
    created: Timestamp,
    reason: &str,
    command_id: &str,
) -> ClaimRecord {
    let (pool_hash, node_class_hash) = hashes_in(cluster, pool);
    ClaimRecord {
        id: id.into(),
        installation: cluster.installation.clone(),
        cluster: cluster.name.clone(),
        origin: ClaimOrigin::default(),
        pool: pool.name.clone(),
        node_class: pool.node_class.clone(),
        created,
        expire_after: pool.expire_after,
        expire_hard_after: pool.expire_hard_after,
        termination_grace_period: pool.termination_grace_period,
        pool_hash,
        node_class_hash,
        startup_taints: pool.startup_taints.clone(),
        reason: reason.to_owned(),
        command_id: command_id.to_owned(),
    }
}

/// Hashes of a pool and its node class in a cluster, formatted for tags.
pub fn hashes_in(cluster: &Cluster, pool: &Pool) -> (String, String) {
    let mut classes = cluster.node_classes.iter();
    let class = classes.find(|class| Some(&class.name) == pool.node_class.as_ref());
    (pool_hash(pool), node_class_hash(class))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::{Change, Hashes, node_class_hash, node_class_hashes, pool_hashes};
    use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};
    use crate::model::node_class::disk::BlockDevice;
    use crate::model::node_class::image::{AmiFamily, ImageTerm};
    use crate::model::node_class::kubelet::{Reserved, Signal, Threshold};
    use crate::model::node_class::network::{
        ConnectionTracking, NetworkInterface, PlacementGroupTerm, ReservationTerm,
        SecurityGroupTerm, SubnetTerm,
    };
    use crate::model::node_class::{NodeClass, NodeIdentity};
    use crate::model::pool::Pool;
    use crate::model::requirement::Requirement;
    use crate::model::taint::{Effect, Taint};

    const fn seconds(count: i64) -> Option<SignedDuration> {
        Some(SignedDuration::from_secs(count))
    }

    fn class() -> NodeClass {
        NodeClass {
            name: "c".into(),
            family: AmiFamily::Al2023,
            identity: Some(NodeIdentity::Role("r".into())),
            tags: [("a".to_owned(), "1".to_owned())].into(),
            block_devices: vec![disk("/dev/xvda"), disk("/dev/xvdb")],
            network_interfaces: Some(vec![card(0), card(1)]),
            connection_tracking: Some(ConnectionTracking::default()),
            ..NodeClass::default()
        }
    }

    fn disk(name: &str) -> BlockDevice {
        BlockDevice { name: name.into(), size: Some(1 << 34), ..BlockDevice::default() }
    }

    fn card(card: u32) -> NetworkInterface {
        NetworkInterface { card, device: 0, efa_only: false }
    }

    fn amount(text: &str, amount: i64) -> (String, Reserved) {
        let text = text.to_owned();
        ("cpu".to_owned(), Reserved { amount, text })
    }

    type Edit<T> = (&'static str, fn(&mut T));

    const FIXED: &[Edit<NodeClass>] = &[
        ("family", |it| it.family = AmiFamily::Custom),
        ("placement group", |it| {
            it.placement_group = Some(PlacementGroupTerm::Name("p".into()));
        }),
        ("role", |it| it.identity = Some(NodeIdentity::Role("s".into()))),
        ("profile", |it| it.identity = Some(NodeIdentity::Profile("r".into()))),
        ("public ip", |it| it.public_ip = Some(false)),
        ("user data", |it| it.user_data = "x".into()),
        ("bootstrap", |it| {
            let token = SecretSource::Minted;
            it.bootstrap = Bootstrap::Kubeadm { token };
        }),
        ("raid0", |it| it.raid0 = true),
        ("monitoring", |it| it.detailed_monitoring = true),
        ("endpoint", |it| it.metadata.endpoint = false),
        ("metadata ipv6", |it| it.metadata.ipv6 = true),
        ("hop limit", |it| it.metadata.hop_limit = 2),
        ("tokens", |it| it.metadata.tokens_required = false),
        ("context", |it| it.context = Some("x".into())),
        ("nested", |it| it.nested_virtualization = Some(false)),
        ("tcp", |it| track(it).tcp_established = seconds(60)),
        ("udp stream", |it| track(it).udp_stream = seconds(60)),
        ("udp", |it| track(it).udp = seconds(60)),
        ("interface", |it| it.network_interfaces = Some(vec![card(0)])),
        ("efa only", |it| interfaces(it)[1].efa_only = true),
        ("device name", |it| it.block_devices[0].name = "/dev/sda".into()),
        ("device size", |it| it.block_devices[0].size = Some(1 << 35)),
        ("volume type", |it| it.block_devices[0].volume_type = Some("io2".into())),
        ("iops", |it| it.block_devices[0].iops = Some(3000)),
        ("throughput", |it| it.block_devices[0].throughput = Some(200)),
        ("encrypted", |it| it.block_devices[0].encrypted = Some(true)),
        ("key", |it| it.block_devices[0].kms_key_id = Some("k".into())),
        ("snapshot", |it| it.block_devices[0].snapshot_id = Some("s".into())),
        ("rate", |it| it.block_devices[0].initialization_rate = Some(100)),
        ("kept", |it| it.block_devices[0].delete_on_termination = Some(false)),
        ("root volume", |it| it.block_devices[0].root_volume = true),
        ("devices", |it| it.block_devices.clear()),
        ("max pods", |it| it.kubelet.max_pods = Some(10)),
        ("pods per core", |it| it.kubelet.pods_per_core = Some(10)),
        ("dns", |it| it.kubelet.cluster_dns = vec!["10.0.0.10".parse().expect("ip")]),
        ("system", |it| it.kubelet.system_reserved = [amount("1", 1000)].into()),
        ("kube", |it| it.kubelet.kube_reserved = [amount("1", 1000)].into()),
        ("hard", |it| {
            let share = Threshold::Share(500);
            it.kubelet.eviction_hard = [(Signal::MemoryAvailable, share)].into();
        }),
        ("soft", |it| {
            let share = Threshold::Share(500);
            it.kubelet.eviction_soft = [(Signal::MemoryAvailable, share)].into();
        }),
        ("grace", |it| {
            let grace = SignedDuration::from_secs(60);
            it.kubelet.eviction_soft_grace_period = [(Signal::MemoryAvailable, grace)].into();
        }),
        ("most grace", |it| it.kubelet.eviction_max_pod_grace_period = Some(1)),
        ("gc high", |it| it.kubelet.image_gc_high_threshold_percent = Some(80)),
        ("gc low", |it| it.kubelet.image_gc_low_threshold_percent = Some(70)),
        ("quota", |it| it.kubelet.cpu_cfs_quota = Some(false)),
        ("extra", |it| it.kubelet.extra = [("a".to_owned(), json!(1))].into()),
    ];

    const UNHASHED: &[Edit<NodeClass>] = &[
        ("name", |it| it.name = "d".into()),
        ("images", |it| it.images = vec![ImageTerm::Id("ami-1".into())]),
        ("subnets", |it| it.subnets = vec![SubnetTerm::Id("subnet-1".into())]),
        ("groups", |it| it.security_groups = vec![SecurityGroupTerm::Id("sg-1".into())]),
        ("reservations", |it| it.reservations = vec![ReservationTerm::Id("cr-1".into())]),
        ("prefixes", |it| it.ip_prefix_count = Some(1)),
        ("enis", |it| it.reserved_enis = 1),
        ("overhead", |it| it.vm_overhead_per_mille = Some(1)),
        ("order of devices", |it| it.block_devices.reverse()),
        ("order of interfaces", |it| interfaces(it).reverse()),
    ];

    fn track(it: &mut NodeClass) -> &mut ConnectionTracking {
        it.connection_tracking.as_mut().expect("there is one")
    }

    fn interfaces(it: &mut NodeClass) -> &mut Vec<NetworkInterface> {
        it.network_interfaces.as_mut().expect("there are some")
    }

    /// Each edit alone changes these hashes as expected.
    fn check_edits<T: Clone>(base: &T, hash: fn(&T) -> Hashes, edits: &[Edit<T>], expect: Change) {
        let written = hash(base).to_string();
        for (name, edit) in edits {
            let mut edited = base.clone();
            edit(&mut edited);
            assert_eq!(hash(&edited).change_since(&written), expect, "{name}");
        }
    }

    #[test]
    fn each_node_class_field_changes_the_expected_hash() {
        check_edits(&class(), node_class_hashes, FIXED, Change::Drifted);
        check_edits(&class(), node_class_hashes, UNHASHED, Change::None);
        let tags: &[Edit<NodeClass>] = &[
            ("more", |it| drop(it.tags.insert("b".into(), "2".into()))),
            ("other", |it| drop(it.tags.insert("a".into(), "2".into()))),
            ("none", |it| it.tags.clear()),
        ];
        check_edits(&class(), node_class_hashes, tags, Change::InPlace);
        let tagged = |keys: [&str; 2]| {
            let tags = keys.map(|key| (key.to_owned(), "1".to_owned())).into();
            node_class_hashes(&NodeClass { tags, ..class() })
        };
        assert_eq!(tagged(["a", "b"]), tagged(["b", "a"]));
        // All edits produce different hashes.
        let mut all: Vec<u64> = FIXED
            .iter()
            .map(|(_, edit)| {
                let mut edited = class();
                edit(&mut edited);
                node_class_hashes(&edited).fixed
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), FIXED.len());
    }

    #[test]
    fn each_pool_field_changes_the_expected_hash() {
        let mut pool = Pool::new("p");
        pool.taints = vec![taint("a"), taint("b")];
        let fixed: &[Edit<Pool>] = &[("class", |it| it.node_class = Some("c".into()))];
        let in_place: &[Edit<Pool>] = &[
            ("labels", |it| drop(it.labels.insert("a".into(), "b".into()))),
            ("annotations", |it| drop(it.annotations.insert("a".into(), "b".into()))),
            ("taints", |it| drop(it.taints.pop())),
            ("startup taints", |it| it.startup_taints.push(taint("s"))),
            ("expiry", |it| it.expire_after = None),
            ("hard expiry", |it| it.expire_hard_after = it.expire_after),
            ("grace", |it| it.termination_grace_period = seconds(1)),
        ];
        let unhashed: &[Edit<Pool>] = &[
            ("name", |it| it.name = "q".into()),
            ("requirements", |it| it.requirements.add("a", Requirement::exists())),
            ("limits", |it| it.limits.nodes = Some(1)),
            ("weight", |it| it.weight = 1),
            ("replicas", |it| it.replicas = Some(1)),
            ("launch", |it| it.launch_timeout = SignedDuration::ZERO),
            ("registration", |it| it.registration_timeout = SignedDuration::ZERO),
            ("initialization", |it| it.initialization_timeout = SignedDuration::ZERO),
            ("disruption", |it| it.disruption.budgets.clear()),
            ("order of taints", |it| it.taints.reverse()),
        ];
        check_edits(&pool, pool_hashes, fixed, Change::Drifted);
        check_edits(&pool, pool_hashes, in_place, Change::InPlace);
        check_edits(&pool, pool_hashes, unhashed, Change::None);
    }

    fn taint(key: &str) -> Taint {
        Taint::new(key, Effect::NoSchedule)
    }

    #[test]
    fn equivalent_kubelet_settings_have_equal_hashes() {
        let of = |cpu: (String, Reserved), extra: &str| {
            let mut class = class();
            class.kubelet.kube_reserved = [cpu].into();
            let extra = serde_json::from_str(extra).expect("json");
            class.kubelet.extra = [("x".to_owned(), extra)].into();
            node_class_hashes(&class)
        };
        let one = of(amount("1", 1000), r#"{"a":[1,{"c":2,"d":3}],"b":"x"}"#);
        let same = of(amount("1000m", 1000), r#"{"b":"x","a":[1,{"d":3,"c":2}]}"#);
        assert_eq!(one, same);
        // A different byte order is a different configuration.
        let other = of(amount("1", 1000), r#"{"a":[1,{"c":3,"d":2}],"b":"x"}"#);
        assert_ne!(one.fixed, other.fixed);
        let list = of(amount("1", 1000), r#"{"a":[{"c":2,"d":3},1],"b":"x"}"#);
        assert_ne!(one.fixed, list.fixed);
    }

    #[test]
    fn hashes_of_another_version_give_an_unknown_change() {
        let hashes = node_class_hashes(&class());
        let good = hashes.to_string();
        assert_eq!(good.parse(), Ok(hashes));
        assert_eq!(hashes.change_since(&good), Change::None);
        let others = [
            "",
            "v1:0000000000000000",
            "v1:none",
            "v2:none",
            "4950366118253097694",
            &good.replace("v2", "v3"),
            &format!("{good}:0"),
            &good[..good.len() - 1],
            &good.replace(':', ""),
        ];
        for other in others {
            assert_eq!(hashes.change_since(other), Change::Unknown, "{other}");
        }
        assert_eq!(node_class_hash(None), "v2:none");
    }

    /// Tags of running instances have these hashes. If this test fails, change the version before a
    /// release; otherwise every node of every cluster drifts.
    #[test]
    fn hashes_are_stable_across_releases() {
        let mut full = class();
        let shrinks = ["interface", "devices"];
        for (_, edit) in FIXED.iter().filter(|(name, _)| !shrinks.contains(name)) {
            edit(&mut full);
        }
        let pool = pool_hashes(&Pool::new("p")).to_string();
        let classes = [&class(), &full].map(|class| node_class_hashes(class).to_string());
        let expect = [
            "v2:cbf29ce484222325:796963c89bcce00b",
            "v2:e927b8168154041d:3e93d2357b2d543b",
            "v2:31870f34d4902f58:3e93d2357b2d543b",
        ];
        assert_eq!([pool.as_str(), &classes[0], &classes[1]], expect);
    }
}
