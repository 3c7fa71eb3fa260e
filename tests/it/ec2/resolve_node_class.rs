//! Resources that the terms of a node class match in an account and region, and the conditions of
//! the class. Source: the cases of spec/aws.md §12.10 and §12.11.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use outrigger::ec2::resolve_node_class::{
    ListedReservation, RegionResources, ResolveError, resolve_node_class,
};
use outrigger::model::instance::Arch;
use outrigger::model::labels::Labels;
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::image::{AmiFamily, ImageTerm};
use outrigger::model::node_class::network::{
    MatchCriteria, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm, SubnetTerm,
};
use outrigger::model::node_class::resolved::{
    Cause, ConditionKind, FoundReservation, Image, NodeClassCondition, NodeClassConditionStatus,
    PlacementGroup, PlacementGroupStrategy, ResolvedNodeClass, SecurityGroup, Subnet,
};
use outrigger::model::reservation::{Reservation, ReservationKind};

use super::fixture::NOW;

/// Parses tags from `key=value` words.
fn tags(text: &str) -> Labels {
    let pairs = text.split_whitespace().map(|own| own.split_once('=').expect("a tag"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn subnet(id: &str, free: u32, own: &str) -> (Subnet, Labels) {
    let subnet = Subnet {
        id: format!("subnet-{id}"),
        zone: format!("us-east-1{}", &id[..1]).as_str().into(),
        zone_id: format!("use1-{id}"),
        free,
    };
    (subnet, tags(own))
}

fn group(id: &str, name: &str, own: &str) -> (SecurityGroup, Labels) {
    let group = SecurityGroup { id: format!("sg-{id}"), name: name.to_owned() };
    (group, tags(own))
}

/// A reservation of an account; open or targeted.
fn reserved(id: &str, owner: &str, open: bool, own: &str) -> ListedReservation {
    ListedReservation {
        found: FoundReservation {
            instance_type: "m5.large".into(),
            zone: "us-east-1a".into(),
            reservation: Reservation::new(id, 3),
            is_usable: true,
        },
        owner: owner.to_owned(),
        criteria: Some(match open {
            true => MatchCriteria::Open,
            false => MatchCriteria::Targeted,
        }),
        platform: "Linux/UNIX".to_owned(),
        is_dedicated: false,
        tags: tags(own),
    }
}

fn placement(id: &str, strategy: PlacementGroupStrategy) -> PlacementGroup {
    PlacementGroup { id: id.to_owned(), strategy }
}

/// Returns all resources of the account and region.
fn region_resources() -> RegionResources {
    let groups = [
        ("near", placement("pg-1", PlacementGroupStrategy::Cluster)),
        ("parts", placement("pg-2", PlacementGroupStrategy::Partition(3))),
        ("apart", placement("pg-3", PlacementGroupStrategy::Spread)),
        ("pg-named", placement("pg-4", PlacementGroupStrategy::Cluster)),
    ];
    let groups = groups.map(|(name, own)| (name.to_owned(), own));
    RegionResources {
        subnets: Ok(vec![
            subnet("a1", 100, "team=web tier=front"),
            subnet("a2", 200, "team=web tier=back"),
            subnet("b1", 100, "team=db tier=back"),
            subnet("c1", 300, "Name=c"),
        ]),
        security_groups: Ok(vec![
            group("3", "nodes", "team=db"),
            group("1", "nodes", "team=web tier=back"),
            group("2", "other", "team=web Name=nodes"),
        ]),
        reservations: Ok(vec![
            reserved("cr-3", "2", true, "team=web"),
            reserved("cr-1", "1", true, "team=web"),
            reserved("cr-2", "1", false, "team=web tier=back"),
            reserved("cr-4", "1", false, "team=db"),
        ]),
        placement_groups: Ok(BTreeMap::from(groups)),
    }
}

fn image() -> Image {
    Image {
        id: "ami-1".to_owned(),
        name: String::new(),
        arch: Arch::Amd64,
        variants: Vec::new(),
        created: None,
        deprecated: false,
    }
}

fn class() -> NodeClass {
    NodeClass {
        name: "standard".into(),
        images: vec![ImageTerm::Alias { family: AmiFamily::Al2023, version: "latest".to_owned() }],
        subnets: vec![SubnetTerm::Tags(tags("team=web"))],
        security_groups: vec![SecurityGroupTerm::Tags(tags("team=web"))],
        ..NodeClass::default()
    }
}

fn resolved(class: &NodeClass, found: &RegionResources) -> ResolvedNodeClass {
    let profile = Ok("profile".to_owned());
    resolve_node_class(class, found, Ok(vec![image()]), profile, NOW)
}

fn condition(own: &ResolvedNodeClass, kind: ConditionKind) -> &NodeClassCondition {
    let mut all = own.conditions.iter();
    all.find(|it| it.kind == kind).expect("a condition")
}

/// Returns the subnets without the prefix of their ids, in order.
fn subnets(own: &ResolvedNodeClass) -> String {
    let ids = own.subnets.iter();
    let ids = ids.map(|own| own.id.trim_start_matches("subnet-"));
    ids.collect::<Vec<_>>().join(" ")
}

fn groups(own: &ResolvedNodeClass) -> String {
    let ids = own.security_groups.iter();
    let ids = ids.map(|own| own.id.trim_start_matches("sg-"));
    ids.collect::<Vec<_>>().join(" ")
}

/// Terms as `id` or `key=value key=value`, and the subnets that they match: by free addresses in
/// descending order, then by id. Terms are alternatives; all parts of one term must match.
#[test]
fn subnets_are_found_by_their_terms() {
    let rows: [(&[&str], &str); 12] = [
        (&["subnet-a1"], "a1"),
        (&["subnet-b1", "subnet-a1"], "a1 b1"),
        (&["subnet-a1", "team=db"], "a1 b1"),
        (&["subnet-a2", "team=web"], "a2 a1"),
        (&["team=web"], "a2 a1"),
        (&["team=web", "team=db"], "a2 a1 b1"),
        (&["team=web tier=back"], "a2"),
        (&["team=db tier=front"], ""),
        (&["team=*"], "a2 a1 b1"),
        (&["team=* tier=back"], "a2 b1"),
        (&["Name=c"], "c1"),
        (&["subnet-zz"], ""),
    ];
    for (terms, expect) in rows {
        let mut class = class();
        let term = |text: &&str| match text.contains('=') {
            true => SubnetTerm::Tags(tags(text)),
            false => SubnetTerm::Id((*text).to_owned()),
        };
        class.subnets = terms.iter().map(term).collect();
        let own = resolved(&class, &region_resources());
        assert_eq!(subnets(&own), expect, "{terms:?}");
        let ready = condition(&own, ConditionKind::SubnetsReady);
        let cause = expect.is_empty().then_some(Cause::SubnetsNotFound);
        assert_eq!(ready.cause, cause, "{terms:?}");
        let named = expect.is_empty() && ready.message.contains("no subnet matches");
        assert_eq!(named, expect.is_empty(), "{}", ready.message);
    }
}

/// The same for security groups, in the order of their ids. The name of a group is not its tag
/// `Name`.
#[test]
fn security_groups_are_found_by_their_terms() {
    let rows: [(&[&str], &str); 11] = [
        (&["sg-3"], "3"),
        (&["sg-3", "sg-1"], "1 3"),
        (&["sg-3", "team=web"], "1 2 3"),
        (&["sg-1", "team=web"], "1 2"),
        (&["name nodes"], "1 3"),
        (&["name nodes", "sg-2"], "1 2 3"),
        (&["team=web tier=back"], "1"),
        (&["team=*"], "1 2 3"),
        (&["Name=nodes"], "2"),
        (&["name none"], ""),
        (&["sg-9"], ""),
    ];
    for (terms, expect) in rows {
        let mut class = class();
        let term = |text: &&str| match (text.strip_prefix("name "), text.contains('=')) {
            (Some(name), _) => SecurityGroupTerm::Name(name.to_owned()),
            (None, true) => SecurityGroupTerm::Tags(tags(text)),
            (None, false) => SecurityGroupTerm::Id((*text).to_owned()),
        };
        class.security_groups = terms.iter().map(term).collect();
        let own = resolved(&class, &region_resources());
        assert_eq!(groups(&own), expect, "{terms:?}");
        let ready = condition(&own, ConditionKind::SecurityGroupsReady);
        let cause = expect.is_empty().then_some(Cause::SecurityGroupsNotFound);
        assert_eq!(ready.cause, cause, "{terms:?}");
    }
}

/// A changed class or region is resolved from scratch, without earlier results.
#[test]
fn resolution_follows_changes_of_the_class_and_the_region() {
    let mut class = class();
    let mut resources = region_resources();
    assert_eq!(subnets(&resolved(&class, &resources)), "a2 a1");
    class.subnets = vec![SubnetTerm::Tags(tags("team=db"))];
    class.security_groups = vec![SecurityGroupTerm::Id("sg-9".to_owned())];
    let own = resolved(&class, &resources);
    assert_eq!((subnets(&own), groups(&own)), ("b1".into(), String::new()));
    let unmet = own.first_unmet().map(|own| (own.kind, own.status));
    let kind = ConditionKind::SecurityGroupsReady;
    assert_eq!(unmet, Some((kind, NodeClassConditionStatus::False)));
    // A subnet with fewer free addresses moves back, and a deleted subnet is not found.
    class.subnets = vec![SubnetTerm::Tags(tags("team=web"))];
    let Ok(all) = &mut resources.subnets else {
        panic!("no subnets");
    };
    all[1].0.free = 10;
    assert_eq!(subnets(&resolved(&class, &resources)), "a1 a2");
    remove_subnet(&mut resources, "subnet-a1");
    assert_eq!(subnets(&resolved(&class, &resources)), "a2");
}

fn remove_subnet(resources: &mut RegionResources, id: &str) {
    if let Ok(all) = &mut resources.subnets {
        all.retain(|(own, _)| own.id != id);
    }
}

fn search(owner: Option<&str>, criteria: Option<MatchCriteria>, own: &str) -> ReservationTerm {
    ReservationTerm::Search { owner: owner.map(str::to_owned), criteria, tags: tags(own) }
}

fn reservations(own: &ResolvedNodeClass) -> String {
    let ids = own.reservations.iter();
    let ids = ids.map(|own| own.reservation.id.as_str().trim_start_matches("cr-"));
    ids.collect::<Vec<_>>().join(" ")
}

/// Reservations have the order of their ids. A term without a match is no error.
#[test]
fn reservations_are_found_by_their_terms() {
    use MatchCriteria::{Open, Targeted};
    let id = |id: &str| ReservationTerm::Id(id.to_owned());
    let rows = [
        (vec![id("cr-2")], "2"),
        (vec![id("cr-2"), id("cr-1")], "1 2"),
        (vec![search(None, None, "team=web")], "1 2 3"),
        (vec![search(None, None, "team=web tier=*")], "2"),
        (vec![search(Some("1"), None, "team=web")], "1 2"),
        (vec![search(None, Some(Open), "")], "1 3"),
        (vec![search(None, Some(Targeted), "")], "2 4"),
        (vec![search(None, Some(Targeted), "team=web")], "2"),
        (vec![search(Some("2"), Some(Open), "team=web")], "3"),
        (vec![search(Some("2"), Some(Targeted), "team=web")], ""),
        (vec![id("cr-4"), search(None, Some(Open), "")], "1 3 4"),
        (vec![id("cr-9")], ""),
    ];
    for (terms, expect) in rows {
        let mut class = class();
        class.reservations = terms;
        let own = resolved(&class, &region_resources());
        assert_eq!(reservations(&own), expect, "{:?}", class.reservations);
        let ready = condition(&own, ConditionKind::CapacityReservationsReady);
        assert_eq!(ready.status, NodeClassConditionStatus::True, "{:?}", class.reservations);
    }
    // A class without reservation terms has no reservations and no such condition, even if open
    // reservations exist.
    let own = resolved(&class(), &region_resources());
    assert_eq!(reservations(&own), "");
    let kind = ConditionKind::CapacityReservationsReady;
    assert!(own.conditions.iter().all(|own| own.kind != kind));
}

/// The family of the class; platform and tenancy of the reservation; whether it is used.
#[test]
fn reservations_of_another_platform_or_tenancy_are_not_used() {
    let (linux, windows, red_hat) = ("Linux/UNIX", "Windows", "Red Hat Enterprise Linux");
    let cases = [
        (AmiFamily::Al2023, linux, false, true),
        (AmiFamily::Al2023, "", false, true),
        (AmiFamily::Al2023, windows, false, false),
        (AmiFamily::Al2023, red_hat, false, false),
        (AmiFamily::Al2023, linux, true, false),
        (AmiFamily::Bottlerocket, "Linux with SQL Server Web", false, false),
        (AmiFamily::Windows2022, windows, false, true),
        (AmiFamily::Windows2022, "Windows with SQL Server", false, false),
        (AmiFamily::Windows2022, linux, false, false),
        (AmiFamily::Custom, windows, false, true),
        (AmiFamily::Custom, red_hat, false, true),
    ];
    for (family, platform, is_dedicated, is_used) in cases {
        let mut class = class();
        class.family = family;
        class.reservations = vec![ReservationTerm::Id("cr-1".to_owned())];
        let listed = reserved("cr-1", "111122223333", false, "");
        let listed = ListedReservation { platform: platform.to_owned(), is_dedicated, ..listed };
        let resources = RegionResources { reservations: Ok(vec![listed]), ..region_resources() };
        let found = resolved(&class, &resources).reservations;
        assert_eq!(found.len(), 1, "a node that runs in it does not drift");
        assert_eq!(found[0].is_usable, is_used, "{family:?} {platform} {is_dedicated}");
    }
}

/// Kind, whether it is interruptible, minutes to its end; whether it is found.
#[test]
fn reservations_are_found_until_they_end() {
    use ReservationKind::{CapacityBlock, Default};
    let rows = [
        (Default, false, None, true),
        (Default, true, None, true),
        (Default, false, Some(1), true),
        (Default, false, Some(0), false),
        (Default, false, Some(-1), false),
        // A capacity block shortly before its end is still found: its end time prevents launches.
        (CapacityBlock, false, Some(41), true),
        (CapacityBlock, false, Some(39), true),
        (CapacityBlock, false, Some(-1), false),
    ];
    for (kind, interruptible, minutes, expect) in rows {
        let mut own = reserved("cr-1", "1", false, "");
        own.found.reservation.kind = kind;
        own.found.reservation.interruptible = interruptible;
        own.found.reservation.ends = minutes.map(|own| NOW + SignedDuration::from_mins(own));
        let mut class = class();
        class.reservations = vec![ReservationTerm::Id("cr-1".to_owned())];
        let resources =
            RegionResources { reservations: Ok(vec![own.clone()]), ..region_resources() };
        let all = resolved(&class, &resources).reservations;
        let expect = Vec::from_iter(expect.then_some(own.found));
        assert_eq!(all, expect, "{kind:?} {minutes:?}");
    }
}

#[test]
fn a_placement_group_is_found_by_name_or_id() {
    let name = |own: &str| Some(PlacementGroupTerm::Name(own.to_owned()));
    let id = |own: &str| Some(PlacementGroupTerm::Id(own.to_owned()));
    let mut class = class();
    let kind = ConditionKind::PlacementGroupReady;
    let rows = [
        (name("near"), Some(("pg-1", PlacementGroupStrategy::Cluster))),
        (id("pg-1"), Some(("pg-1", PlacementGroupStrategy::Cluster))),
        (name("parts"), Some(("pg-2", PlacementGroupStrategy::Partition(3)))),
        (id("pg-3"), Some(("pg-3", PlacementGroupStrategy::Spread))),
        // A name that looks like an id is a name.
        (name("pg-named"), Some(("pg-4", PlacementGroupStrategy::Cluster))),
        (name("pg-1"), None),
        (id("pg-named"), None),
        (name("none"), None),
    ];
    for (term, expect) in rows {
        class.placement_group = term;
        let own = resolved(&class, &region_resources());
        let expect = expect.map(|(id, strategy)| placement(id, strategy));
        let ready = condition(&own, kind);
        let cause = expect.is_none().then_some(Cause::PlacementGroupNotFound);
        assert_eq!(own.placement_group, expect, "{:?}", class.placement_group);
        assert_eq!(ready.cause, cause, "{:?}", class.placement_group);
        assert_eq!(ready.status == NodeClassConditionStatus::False, cause.is_some());
    }
    // A class without a placement group has neither a group nor the condition.
    class.placement_group = None;
    let own = resolved(&class, &region_resources());
    assert_eq!(own.placement_group, None);
    assert!(own.conditions.iter().all(|own| own.kind != kind));
}

type Failure = fn(&mut RegionResources, ResolveError);

/// A failed listing leaves the condition unknown, or false if a permission is missing.
#[test]
fn failed_listing_makes_the_condition_unknown_or_denied() {
    let rows: [(ConditionKind, Failure); 4] = [
        (ConditionKind::SubnetsReady, |it, why| it.subnets = Err(why)),
        (ConditionKind::SecurityGroupsReady, |it, why| {
            it.security_groups = Err(why);
        }),
        (ConditionKind::CapacityReservationsReady, |it, why| {
            it.reservations = Err(why);
        }),
        (ConditionKind::PlacementGroupReady, |it, why| {
            it.placement_groups = Err(why);
        }),
    ];
    let causes = [
        (Cause::Unavailable, NodeClassConditionStatus::Unknown),
        (Cause::Denied, NodeClassConditionStatus::False),
    ];
    let mut class = class();
    class.reservations = vec![ReservationTerm::Id("cr-1".to_owned())];
    class.placement_group = Some(PlacementGroupTerm::Name("near".to_owned()));
    for (kind, fail) in rows {
        for (cause, status) in causes {
            let text = "ec2:Describe: slow".to_owned();
            let mut resources = region_resources();
            fail(&mut resources, ResolveError { cause, text: text.clone() });
            let own = resolved(&class, &resources);
            let expect = NodeClassCondition { kind, status, cause: Some(cause), message: text };
            assert_eq!(own.first_unmet(), Some(&expect), "{kind:?}");
        }
    }
    // Nothing has been listed yet.
    let own = resolved(&class, &RegionResources::default());
    assert_eq!(own.first_unmet().map(|own| own.status), Some(NodeClassConditionStatus::Unknown));
}

/// Results of the image and profile lookup, and the first unmet condition.
#[test]
fn images_and_profile_set_their_conditions() {
    let trouble = |cause| ResolveError { cause, text: "why".to_owned() };
    let profile = || Ok("profile".to_owned());
    let (images, identity) = (ConditionKind::ImagesReady, ConditionKind::InstanceProfileReady);
    let rows = [
        (Ok(vec![image()]), profile(), None),
        (
            Ok(vec![]),
            profile(),
            Some((images, Cause::ImageNotFound, NodeClassConditionStatus::False)),
        ),
        (
            Err(trouble(Cause::UnsupportedAlias)),
            profile(),
            Some((images, Cause::UnsupportedAlias, NodeClassConditionStatus::False)),
        ),
        (
            Err(trouble(Cause::Unavailable)),
            profile(),
            Some((images, Cause::Unavailable, NodeClassConditionStatus::Unknown)),
        ),
        (
            Ok(vec![image()]),
            Err(trouble(Cause::RoleNotFound)),
            Some((identity, Cause::RoleNotFound, NodeClassConditionStatus::False)),
        ),
        (
            Ok(vec![image()]),
            Err(trouble(Cause::Unavailable)),
            Some((identity, Cause::Unavailable, NodeClassConditionStatus::Unknown)),
        ),
    ];
    for (found_images, profile, expect) in rows {
        let own = resolve_node_class(&class(), &region_resources(), found_images, profile, NOW);
        let unmet = own.first_unmet();
        let conditions = unmet.map(|own| (own.kind, own.cause.expect("a cause"), own.status));
        assert_eq!(conditions, expect);
        let known = own.profile.is_some();
        assert_eq!(known, expect.is_none_or(|(kind, ..)| kind != identity));
        let named = unmet.is_none_or(|own| own.message.contains("al2023@latest"));
        let cause = expect.map(|(_, cause, _)| cause);
        assert_eq!(named, matches!(cause, None | Some(Cause::ImageNotFound)));
    }
}
