//! Topology requirements of the volumes of a pod, and the number of volumes that a node can still
//! attach.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::model::id::{ObjectKey, PodKey};
use crate::model::labels::ATTACHABLE;
use crate::model::pod::Pod;
use crate::model::requirement::Requirements;
use crate::model::watched_object::{CsiNode, VolumeClaim};
use crate::state::object_cache::ObjectCache;
use crate::state::snapshot::VolumeRequirements;

/// The CSI driver of EBS, which replaces the in-tree provisioner.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// The in-tree provisioner of EBS.
const EBS_IN_TREE: &str = "kubernetes.io/aws-ebs";

/// Provisioner of a StorageClass with manually created volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Maximum number of volume claims of a pod that is evaluated. No node could attach more.
const CLAIMS_MAX: usize = 1000;

/// Maximum number of alternative locations for the volumes of a pod. Zonal volumes leave only one
/// location. With a higher number, the volumes restrict each other only slightly.
const ALTERNATIVES_MAX: usize = 64;

/// Why the volumes of a pod cannot be used now.
#[derive(Debug, Error)]
#[error("{0}")]
struct VolumeFault(String);

/// Returns the volume requirements of these pods. The pods in `promised` are planned for nodes and
/// may already use PersistentVolumeClaims.
pub(super) fn volume_requirements<'a>(
    objects: &ObjectCache,
    pending: &[&'a Pod],
    promised: impl Iterator<Item = &'a Pod>,
) -> BTreeMap<&'a PodKey, VolumeRequirements> {
    let mut first: BTreeMap<ObjectKey, &Pod> = BTreeMap::new();
    let mut order: Vec<&Pod> =
        pending.iter().copied().filter(|pod| !pod.volume_claims.is_empty()).collect();
    // The pod that kube-scheduler considers first uses a ReadWriteOncePod claim.
    order.sort_by_key(|pod| (std::cmp::Reverse(pod.priority), pod.created, &pod.key));
    for pod in promised.chain(order.iter().copied()) {
        for key in claim_keys(pod) {
            if objects.volume_claims.get(&key).is_some_and(|volume_claim| volume_claim.once_pod) {
                first.entry(key).or_insert(pod);
            }
        }
    }
    order.iter().map(|pod| (&pod.key, volume_requirements_of(objects, pod, &first))).collect()
}

/// Returns the distinct PersistentVolumeClaims of a pod.
fn claim_keys(pod: &Pod) -> BTreeSet<ObjectKey> {
    let namespace = pod.key.namespace.as_str();
    let names = pod.volume_claims.iter().take(CLAIMS_MAX);
    let keys = names.map(|name| ObjectKey::new(namespace, name.as_str()));
    keys.collect()
}

/// Returns the volume requirements of a pod. `first` are the pods that use ReadWriteOncePod claims.
pub(super) fn volume_requirements_of(
    objects: &ObjectCache,
    pod: &Pod,
    first: &BTreeMap<ObjectKey, &Pod>,
) -> VolumeRequirements {
    let mut mounts = VolumeRequirements::default();
    match locations_of(objects, pod, first, &mut mounts.attached) {
        // An alternative without requirements matches any node.
        Ok(locations) if locations.iter().any(Requirements::is_empty) => {}
        Ok(locations) => mounts.alternatives = locations.into_iter().collect(),
        Err(fault) => mounts.fault = Some(fault.to_string()),
    }
    mounts
}

/// Returns the locations where all volumes of a pod can be used, and counts its volumes by driver
/// in `attached`.
fn locations_of(
    objects: &ObjectCache,
    pod: &Pod,
    first: &BTreeMap<ObjectKey, &Pod>,
    attached: &mut BTreeMap<String, i64>,
) -> Result<BTreeSet<Requirements>, VolumeFault> {
    let count = pod.volume_claims.len();
    if count > CLAIMS_MAX {
        return Err(VolumeFault(format!("it has {count} volumes, more than Outrigger evaluates")));
    }
    let mut locations = BTreeSet::from([Requirements::default()]);
    for key in claim_keys(pod) {
        let claim = usable_claim(objects, &key)?;
        if let Some(user) = used_by(objects, claim, pod, first) {
            return Err(VolumeFault(format!(
                "PersistentVolumeClaim {key} is ReadWriteOncePod and used by {user}"
            )));
        }
        locations = intersect_locations(&locations, volume_locations(objects, claim)?)?;
        if let Some(driver) = csi_driver_of(objects, &key) {
            *attached.entry(attachable_resource(driver)).or_insert(0) += 1;
        }
    }
    Ok(locations)
}

/// Returns a usable PersistentVolumeClaim. Source: spec/scheduling.md §1.4 (c).
fn usable_claim<'o>(
    objects: &'o ObjectCache,
    key: &ObjectKey,
) -> Result<&'o VolumeClaim, VolumeFault> {
    let fault = match objects.volume_claims.get(key) {
        None => "does not exist",
        Some(claim) if claim.deleting => "is being deleted",
        Some(claim) if claim.phase == "Lost" => "has lost its volume",
        Some(claim) => return Ok(claim),
    };
    Err(VolumeFault(format!("PersistentVolumeClaim {key} {fault}")))
}

/// Returns a different pod that uses, or will first use, a ReadWriteOncePod claim. Source:
/// kube-scheduler, VolumeRestrictions.
fn used_by<'o>(
    objects: &'o ObjectCache,
    claim: &VolumeClaim,
    pod: &Pod,
    first: &BTreeMap<ObjectKey, &'o Pod>,
) -> Option<&'o PodKey> {
    if !claim.once_pod {
        return None;
    }
    let bound = objects.users_of_claim(&claim.key).find(|key| **key != pod.key);
    let first = first.get(&claim.key).map(|pod| &pod.key);
    bound.or_else(|| first.filter(|key| **key != pod.key))
}

/// Returns alternative locations of the volume of a claim. An empty list means any location. `Err`
/// is the reason why the volume cannot be used now. Source: kube-scheduler, VolumeBinding.
fn volume_locations<'o>(
    objects: &'o ObjectCache,
    claim: &'o VolumeClaim,
) -> Result<&'o [Requirements], VolumeFault> {
    let (key, volume, class) = (&claim.key, &claim.volume, &claim.storage_class);
    if claim.is_bound {
        // A local volume keeps the name of its node. The scheduler accepts no other node, not even
        // a replacement with the same role.
        let existing = objects.volumes.get(volume);
        if let Some(existing) = existing.filter(|existing| !existing.deleting) {
            return Ok(&existing.node_affinity);
        }
        let fault = match existing {
            Some(_) => "is being deleted",
            None => "does not exist",
        };
        return Err(VolumeFault(format!("PersistentVolume {volume} of claim {key} {fault}")));
    }
    Err(VolumeFault(if !volume.is_empty() {
        format!("PersistentVolumeClaim {key} is not yet bound to PersistentVolume {volume}")
    } else if class.is_empty() {
        format!("PersistentVolumeClaim {key} has no storage class and is not bound")
    } else {
        match objects.storage_classes.get(class) {
            None => format!("StorageClass {class} of PersistentVolumeClaim {key} does not exist"),
            Some(known) if !known.waits_for_consumer => format!(
                "PersistentVolumeClaim {key} is not bound yet, though StorageClass {class} \
                 provisions volumes immediately"
            ),
            Some(known) if known.provisioner == NO_PROVISIONER => format!(
                "PersistentVolumeClaim {key} is not bound; StorageClass {class} provisions no \
                 volumes"
            ),
            Some(known) => return Ok(&known.allowed_topologies),
        }
    }))
}

/// Returns the locations that satisfy both the previous volumes and this one.
fn intersect_locations(
    locations: &BTreeSet<Requirements>,
    volume: &[Requirements],
) -> Result<BTreeSet<Requirements>, VolumeFault> {
    if volume.is_empty() {
        return Ok(locations.clone());
    }
    let mut combined = BTreeSet::new();
    for (location, topology) in locations
        .iter()
        .flat_map(|location| volume.iter().map(move |topology| (location, topology)))
    {
        let narrowed = location.merged_with(topology);
        if !narrowed.iter().any(|(_, requirement)| requirement.is_impossible()) {
            combined.insert(narrowed);
        }
        if combined.len() > ALTERNATIVES_MAX {
            let fault = "its volumes allow too many combinations of locations";
            return Err(VolumeFault(fault.to_owned()));
        }
    }
    if combined.is_empty() {
        let fault = "no location can use all its volumes";
        return Err(VolumeFault(fault.to_owned()));
    }
    Ok(combined)
}

/// Returns the CSI driver that attaches the volume of a claim, if known. Source: spec/scheduling.md
/// §2.12.
fn csi_driver_of<'o>(objects: &'o ObjectCache, claim: &ObjectKey) -> Option<&'o str> {
    let claim = objects.volume_claims.get(claim)?;
    if let Some(volume) = objects.volumes.get(&claim.volume) {
        return (!volume.driver.is_empty()).then_some(&volume.driver);
    }
    let class = objects.storage_classes.get(&claim.storage_class)?;
    match class.provisioner.as_str() {
        EBS_IN_TREE => Some(EBS_DRIVER),
        // In-tree volumes other than EBS are not counted.
        other if other.starts_with("kubernetes.io/") || other.is_empty() => None,
        other => Some(other),
    }
}

/// Returns the resource name that counts volumes of a driver.
fn attachable_resource(driver: &str) -> String {
    format!("{ATTACHABLE}{driver}")
}

/// Returns how many more volumes of these drivers a node can attach, beyond those of its current
/// and expected pods. Drivers without a limit are omitted. The number is never negative: an
/// overcommitted node only rejects pods with more volumes.
pub(super) fn attachable_left(
    objects: &ObjectCache,
    node: &CsiNode,
    coming: &[&Pod],
    drivers: &BTreeSet<&str>,
) -> BTreeMap<String, i64> {
    let limits = node.limits.iter();
    let mut left: BTreeMap<&str, (String, i64)> = limits
        .map(|(driver, limit)| (driver, attachable_resource(driver), *limit))
        .filter(|(_, resource, _)| drivers.contains(resource.as_str()))
        .map(|(driver, resource, limit)| (driver.as_str(), (resource, i64::from(limit))))
        .collect();
    if left.is_empty() {
        return BTreeMap::new();
    }
    let load = objects.node_usage(node.name.as_str());
    let keys = coming.iter().flat_map(|pod| claim_keys(pod));
    let others: BTreeSet<ObjectKey> = keys.filter(|key| !load.has_claim(key)).collect();
    for claim in load.volume_claims().chain(&others) {
        let known = csi_driver_of(objects, claim).and_then(|driver| left.get_mut(driver));
        if let Some((_, remaining)) = known {
            *remaining = (*remaining - 1).max(0);
        }
    }
    left.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::{ALTERNATIVES_MAX, attachable_left, attachable_resource, volume_requirements};
    use crate::model::id::ObjectKey;
    use crate::model::labels::{HOSTNAME, ZONE};
    use crate::model::pod::Pod;
    use crate::model::requirement::{Requirement, Requirements};
    use crate::model::watched_object::{CsiNode, StorageClass, Volume, VolumeClaim, WatchedObject};
    use crate::state::fixtures::{NOW, pod, waiting};
    use crate::state::object_cache::ObjectCache;
    use crate::state::snapshot::VolumeRequirements;

    fn in_zones(zones: &[&str]) -> Requirements {
        [(ZONE, Requirement::is_in(zones.iter().copied()))].into_iter().collect()
    }

    fn bound(name: &str) -> VolumeClaim {
        VolumeClaim {
            key: ObjectKey::new("default", name),
            volume: format!("pv-{name}"),
            phase: "Bound".into(),
            is_bound: true,
            ..VolumeClaim::default()
        }
    }

    fn unbound(name: &str, class: &str) -> VolumeClaim {
        VolumeClaim {
            key: ObjectKey::new("default", name),
            storage_class: class.into(),
            phase: "Pending".into(),
            ..VolumeClaim::default()
        }
    }

    fn volume(name: &str, locations: &[Requirements]) -> Volume {
        Volume {
            name: format!("pv-{name}"),
            node_affinity: locations.to_vec(),
            driver: "ebs.csi.aws.com".into(),
            ..Volume::default()
        }
    }

    fn class(name: &str, provisioner: &str, zones: &[&str]) -> StorageClass {
        StorageClass {
            name: name.into(),
            provisioner: provisioner.into(),
            waits_for_consumer: true,
            allowed_topologies: zones.iter().map(|zone| in_zones(&[zone])).collect(),
        }
    }

    fn claims() -> [VolumeClaim; 18] {
        [
            bound("a"),
            bound("b"),
            bound("ab"),
            bound("anywhere"),
            bound("gone"),
            bound("disk"),
            bound("ending-volume"),
            VolumeClaim { deleting: true, ..bound("ending") },
            VolumeClaim { phase: "Lost".into(), ..bound("lost") },
            VolumeClaim { is_bound: false, ..bound("half") },
            VolumeClaim { once_pod: true, ..bound("once") },
            unbound("late", "late"),
            unbound("late-ab", "late-ab"),
            unbound("in-tree", "in-tree"),
            unbound("at-once", "at-once"),
            unbound("by-hand", "by-hand"),
            unbound("no-class", ""),
            unbound("lost-class", "unknown"),
        ]
    }

    fn objects_with_volumes() -> ObjectCache {
        let at_once =
            StorageClass { waits_for_consumer: false, ..class("at-once", "ebs.csi.aws.com", &[]) };
        let volumes = [
            volume("a", &[in_zones(&["a"])]),
            volume("b", &[in_zones(&["b"])]),
            volume("ab", &[in_zones(&["a"]), in_zones(&["b"])]),
            Volume { driver: String::new(), ..volume("anywhere", &[]) },
            Volume {
                driver: String::new(),
                is_local: true,
                ..volume("disk", &[[(HOSTNAME, Requirement::is_in(["n"]))].into_iter().collect()])
            },
            Volume { deleting: true, ..volume("ending-volume", &[]) },
            volume("once", &[]),
        ];
        let classes = [
            class("late", "ebs.csi.aws.com", &[]),
            class("late-ab", "ebs.csi.aws.com", &["a", "b"]),
            class("in-tree", "kubernetes.io/aws-ebs", &[]),
            class("by-hand", "kubernetes.io/no-provisioner", &[]),
            at_once,
        ];
        let mut objects = ObjectCache::default();
        let claims = claims().into_iter().map(WatchedObject::VolumeClaim);
        let volumes = volumes.into_iter().map(WatchedObject::Volume);
        let classes = classes.into_iter().map(WatchedObject::StorageClass);
        for object in claims.chain(volumes).chain(classes) {
            objects.apply(object, NOW);
        }
        objects
    }

    fn with_claims(mut pod: Pod, claims: &str) -> Pod {
        pod.volume_claims = claims.split_whitespace().map(str::to_owned).collect();
        pod
    }

    fn requirements_of(objects: &ObjectCache, claims: &str) -> VolumeRequirements {
        let pod = with_claims(waiting("default", "p"), claims);
        let mut all = volume_requirements(objects, &[&pod], [].into_iter());
        all.remove(&pod.key).expect("it has volumes")
    }

    #[test]
    fn volume_topology_restricts_the_locations_of_a_pod() {
        let objects = objects_with_volumes();
        // Claims, node requirements, and volumes of the EBS driver.
        let cases = [
            ("a", "topology.kubernetes.io/zone in [a]", 1),
            ("anywhere", "", 0),
            ("late", "", 1),
            ("in-tree", "", 1),
            ("disk", "kubernetes.io/hostname in [n]", 0),
            ("a a", "topology.kubernetes.io/zone in [a]", 1),
            ("a anywhere late", "topology.kubernetes.io/zone in [a]", 2),
            ("ab", "topology.kubernetes.io/zone in [a] | topology.kubernetes.io/zone in [b]", 1),
            ("ab b", "topology.kubernetes.io/zone in [b]", 2),
            ("ab late-ab a", "topology.kubernetes.io/zone in [a]", 3),
            (
                "ab late-ab",
                "topology.kubernetes.io/zone in [a] | topology.kubernetes.io/zone in [b]",
                2,
            ),
            ("a disk", "kubernetes.io/hostname in [n], topology.kubernetes.io/zone in [a]", 1),
        ];
        for (claims, locations, attached) in cases {
            let got = requirements_of(&objects, claims);
            assert_eq!(got.fault, None, "{claims}");
            let texts: Vec<String> = got.alternatives.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join(" | "), locations, "{claims}");
            let count = got.attached.get("attachable-volumes-csi-ebs.csi.aws.com");
            assert_eq!(count.copied().unwrap_or(0), attached, "{claims}");
            assert_eq!(got.attached.len(), usize::from(attached > 0), "{claims}");
        }
    }

    #[test]
    fn unusable_volumes_are_reported_with_a_reason() {
        let objects = objects_with_volumes();
        let cases = [
            ("unheard-of", "does not exist"),
            ("ending", "is being deleted"),
            ("lost", "has lost its volume"),
            ("gone", "PersistentVolume pv-gone of claim default/gone does not exist"),
            ("ending-volume", "PersistentVolume pv-ending-volume of claim"),
            ("half", "is not yet bound to PersistentVolume pv-half"),
            ("no-class", "has no storage class"),
            ("lost-class", "StorageClass unknown"),
            ("at-once", "provisions volumes immediately"),
            ("by-hand", "provisions no volumes"),
            ("a b", "no location can use all its volumes"),
            ("a ab b", "no location can use all its volumes"),
            ("a by-hand", "provisions no volumes"),
        ];
        for (claims, why) in cases {
            let fault = requirements_of(&objects, claims).fault.unwrap_or_default();
            assert!(fault.contains(why), "{claims}: {fault}");
        }
    }

    #[test]
    fn volume_claims_are_looked_up_in_the_namespace_of_the_pod() {
        let pod = with_claims(waiting("other", "p"), "a");
        let all = volume_requirements(&objects_with_volumes(), &[&pod], [].into_iter());
        assert!(all[&pod.key].fault.is_some());
    }

    #[test]
    fn combinations_of_volume_locations_are_bounded() {
        let mut objects = objects_with_volumes();
        let locations = |key: &str, count: usize| -> Vec<Requirements> {
            let location = |at: usize| [(key, Requirement::is_in([at.to_string()]))];
            (0..count).map(|at| location(at).into_iter().collect()).collect()
        };
        for (at, count) in [8, 8, 2].into_iter().enumerate() {
            let name = format!("many-{at}");
            objects.apply(WatchedObject::VolumeClaim(bound(&name)), NOW);
            let made = volume(&name, &locations(&name, count));
            objects.apply(WatchedObject::Volume(made), NOW);
        }
        let most = requirements_of(&objects, "many-0 many-1");
        assert_eq!((most.fault, most.alternatives.len()), (None, ALTERNATIVES_MAX));
        let more = requirements_of(&objects, "many-0 many-1 many-2").fault;
        assert!(more.is_some_and(|why| why.contains("too many")));
        let claims: Vec<String> = (0..1001).map(|at| format!("c{at}")).collect();
        assert!(requirements_of(&objects, &claims.join(" ")).fault.is_some());
    }

    #[test]
    fn read_write_once_pod_claim_has_one_user() {
        let with = |name: &str, change: &dyn Fn(&mut Pod)| {
            let mut pod = with_claims(waiting("default", name), "once");
            change(&mut pod);
            pod
        };
        let bound_pod = |name: &str| with_claims(pod("default", name, "n"), "once");
        let none = &|_: &mut Pod| {};
        let urgent = |pod: &mut Pod| pod.priority = 1;
        // Pending pods, promised pods, bound pods, and the pending pods that may be planned.
        let cases = [
            (vec![with("a", none)], vec![], vec![], "a"),
            (vec![with("a", none), with("b", none)], vec![], vec![], "a"),
            (vec![with("a", none), with("b", &urgent)], vec![], vec![], "b"),
            (vec![with("a", none)], vec![with("z", none)], vec![], ""),
            (vec![with("a", none)], vec![], vec![bound_pod("z")], ""),
            // A reschedulable pod owns the claim itself.
            (vec![bound_pod("z")], vec![], vec![bound_pod("z")], "z"),
        ];
        for (pending, promised, bound_pods, expect) in cases {
            let mut objects = objects_with_volumes();
            for pod in bound_pods {
                objects.apply(pod.into(), NOW);
            }
            let pending: Vec<&Pod> = pending.iter().collect();
            let all = volume_requirements(&objects, &pending, promised.iter());
            let free = all.iter().filter(|(_, mount)| mount.fault.is_none());
            let names: Vec<&str> = free.map(|(key, _)| key.name.as_str()).collect();
            assert_eq!(names.join(" "), expect);
        }
        let plain = with_claims(waiting("default", "p"), "");
        assert!(volume_requirements(&objects_with_volumes(), &[&plain], [].into_iter()).is_empty());
    }

    #[test]
    fn attachable_volumes_are_counted_once_up_to_the_node_limit() {
        let limits = CsiNode {
            name: "n".into(),
            limits: vec![("ebs.csi.aws.com".into(), 3), ("efs.csi.aws.com".into(), 9)],
        };
        let resource = attachable_resource("ebs.csi.aws.com");
        let pending = with_claims(waiting("default", "w"), "late a");
        // Claims of the pods on the node, one pod each; the remaining volumes without and with a
        // new pod.
        let cases: [(&[&str], i64, i64); 6] = [
            (&[], 3, 1),
            (&["anywhere", "disk"], 3, 1),
            (&["a", "a", "a b"], 1, 0),
            (&["in-tree b ab"], 0, 0),
            (&["in-tree b ab late-ab once"], 0, 0),
            (&["unheard-of"], 3, 1),
        ];
        for (bound_claims, left, with) in cases {
            let mut objects = objects_with_volumes();
            for (at, claims) in bound_claims.iter().enumerate() {
                let pod_with_claims = with_claims(pod("default", &format!("p{at}"), "n"), claims);
                objects.apply(pod_with_claims.into(), NOW);
            }
            let requested = [resource.as_str()].into();
            let count = |pending: &[&Pod]| {
                let all = attachable_left(&objects, &limits, pending, &requested);
                assert_eq!(all.len(), 1, "only the requested resource");
                all[&resource]
            };
            assert_eq!((count(&[]), count(&[&pending])), (left, with), "{bound_claims:?}");
        }
        let none = attachable_left(
            &objects_with_volumes(),
            &CsiNode::default(),
            &[],
            &[&resource[..]].into(),
        );
        assert!(none.is_empty());
    }
}
