//! Resolves the terms of a node class to resources of an account and region.
//!
//! All resources of a region are listed once for all clusters, and each term selects from them. The
//! number of calls does not grow with the number of node classes (spec/aws.md §13.3).

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::catalog::image_selection;
use crate::model::labels::Labels;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::network::{
    MatchCriteria, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm, SubnetTerm,
};
use crate::model::node_class::resolved::{
    Cause, ConditionKind, FoundReservation, Image, NodeClassCondition, PlacementGroup,
    ResolvedNodeClass, SecurityGroup, Subnet,
};
use crate::model::node_class::{NodeClass, NodeIdentity};

/// Why resources could not be listed, and the resulting condition of the node class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// The cause of the condition.
    pub cause: Cause,
    /// The message, bounded.
    pub text: String,
}

/// The result of a listing, or its error.
pub type ListResult<T> = Result<T, ResolveError>;

/// A capacity reservation of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedReservation {
    /// The properties of the reservation.
    pub found: FoundReservation,
    /// Account id of the owner of the reservation.
    pub owner: String,
    /// Which launches use the reservation automatically. `None` for an unknown value.
    pub criteria: Option<MatchCriteria>,
    /// Platform of its instances, as EC2 names it. Empty if unknown.
    pub platform: String,
    /// Whether it is for instances on dedicated hardware.
    pub is_dedicated: bool,
    /// Tags.
    pub tags: Labels,
}

impl ListedReservation {
    /// Returns whether a term of a node class selects the reservation.
    pub fn matches(&self, term: &ReservationTerm) -> bool {
        match term {
            ReservationTerm::Id(id) => *id == self.found.reservation.id.0,
            ReservationTerm::Search { owner, criteria, tags } => {
                owner.as_ref().is_none_or(|owner| *owner == self.owner)
                    && criteria.is_none_or(|criteria| Some(criteria) == self.criteria)
                    && has_tags(&self.tags, tags)
            }
        }
    }

    /// Returns whether instances of a node class fit the platform and tenancy of the reservation.
    /// The images of the other families have no billed platform such as Red Hat Enterprise Linux;
    /// that of an image of the family `custom` is unknown. Source: EC2 user guide, instance
    /// attributes of Capacity Reservations; EC2 API reference, `InstancePlatform`.
    fn fits(&self, class: &NodeClass) -> bool {
        let platform = match class.family.windows_build() {
            Some(_) => "Windows",
            None => "Linux/UNIX",
        };
        let is_platform = class.family == AmiFamily::Custom
            || self.platform.is_empty()
            || self.platform == platform;
        is_platform && !self.is_dedicated
    }
}

/// The resources of an account and region that node classes may select.
#[derive(Clone, Debug)]
pub struct RegionResources {
    /// Subnets, with their tags.
    pub subnets: ListResult<Vec<(Subnet, Labels)>>,
    /// Security groups, with their tags.
    pub security_groups: ListResult<Vec<(SecurityGroup, Labels)>>,
    /// Active capacity reservations.
    pub reservations: ListResult<Vec<ListedReservation>>,
    /// Available placement groups, by name.
    pub placement_groups: ListResult<BTreeMap<String, PlacementGroup>>,
}

impl Default for RegionResources {
    /// Creates an empty set, before the first listing.
    fn default() -> Self {
        fn not_listed<T>() -> ListResult<T> {
            Err(ResolveError {
                cause: Cause::Unavailable,
                text: "not read from AWS yet".to_owned(),
            })
        }
        Self {
            subnets: not_listed(),
            security_groups: not_listed(),
            reservations: not_listed(),
            placement_groups: not_listed(),
        }
    }
}

/// Returns whether tags match a term. The value `*` matches any value of the key.
pub fn has_tags(tags: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| tags.get(key).is_some_and(|tag| value == "*" || tag == value))
}

fn subnet_matches(term: &SubnetTerm, subnet: &Subnet, tags: &Labels) -> bool {
    match term {
        SubnetTerm::Id(id) => *id == subnet.id,
        SubnetTerm::Tags(wanted) => has_tags(tags, wanted),
    }
}

fn group_matches(term: &SecurityGroupTerm, group: &SecurityGroup, tags: &Labels) -> bool {
    match term {
        SecurityGroupTerm::Id(id) => *id == group.id,
        SecurityGroupTerm::Name(name) => *name == group.name,
        SecurityGroupTerm::Tags(wanted) => has_tags(tags, wanted),
    }
}

/// Resolves a node class. Images and the instance profile are resolved elsewhere, because they are
/// read by name.
pub fn resolve_node_class(
    class: &NodeClass,
    found: &RegionResources,
    images: ListResult<Vec<Image>>,
    profile: ListResult<String>,
    now: Timestamp,
) -> ResolvedNodeClass {
    let mut resolved = ResolvedNodeClass::default();
    let mut conditions = Conditions::default();
    let kind = ConditionKind::ImagesReady;
    if let Some(all) = conditions.check_listing(kind, images) {
        resolved.images = image_selection::select_images(all);
        let is_missing = resolved.images.is_empty();
        conditions.check_found(kind, is_missing, Cause::ImageNotFound, || {
            format!("no image matches {}", image_terms(&class.images))
        });
    }
    let kind = ConditionKind::SubnetsReady;
    if let Some(all) = conditions.check_listing(kind, found.subnets.as_ref()) {
        resolved.subnets = all
            .iter()
            .filter(|(subnet, tags)| {
                let mut terms = class.subnets.iter();
                terms.any(|term| subnet_matches(term, subnet, tags))
            })
            .map(|(subnet, _)| subnet.clone())
            .collect();
        resolved.subnets.sort_by(|a, b| b.free.cmp(&a.free).then_with(|| a.id.cmp(&b.id)));
        let is_missing = resolved.subnets.is_empty();
        conditions.check_found(kind, is_missing, Cause::SubnetsNotFound, || {
            format!("no subnet matches {}", term_texts(&class.subnets))
        });
    }
    let kind = ConditionKind::SecurityGroupsReady;
    if let Some(all) = conditions.check_listing(kind, found.security_groups.as_ref()) {
        resolved.security_groups = all
            .iter()
            .filter(|(group, tags)| {
                let mut terms = class.security_groups.iter();
                terms.any(|term| group_matches(term, group, tags))
            })
            .map(|(group, _)| group.clone())
            .collect();
        resolved.security_groups.sort_by(|a, b| a.id.cmp(&b.id));
        let is_missing = resolved.security_groups.is_empty();
        conditions.check_found(kind, is_missing, Cause::SecurityGroupsNotFound, || {
            let terms = term_texts(&class.security_groups);
            format!("no security group matches {terms}")
        });
    }
    if let Some(profile) = conditions.check_listing(ConditionKind::InstanceProfileReady, profile) {
        resolved.profile = Some(profile);
        conditions.mark_met(ConditionKind::InstanceProfileReady);
    }
    resolve_reservations(class, found, &mut resolved, &mut conditions, now);
    resolve_placement_group(class, found, &mut resolved, &mut conditions);
    resolved.conditions = conditions.0;
    resolved
}

/// Returns reservations that have not ended. It is no error if a term matches none.
fn resolve_reservations(
    class: &NodeClass,
    found: &RegionResources,
    resolved: &mut ResolvedNodeClass,
    conditions: &mut Conditions,
    now: Timestamp,
) {
    if class.reservations.is_empty() {
        return;
    }
    let kind = ConditionKind::CapacityReservationsReady;
    let Some(all) = conditions.check_listing(kind, found.reservations.as_ref()) else {
        return;
    };
    resolved.reservations = all
        .iter()
        .filter(|listed| {
            let ends = listed.found.reservation.ends;
            let mut terms = class.reservations.iter();
            let is_open = ends.is_none_or(|end| end > now);
            is_open && terms.any(|term| listed.matches(term))
        })
        .map(|listed| FoundReservation { is_usable: listed.fits(class), ..listed.found.clone() })
        .collect();
    resolved.reservations.sort_by(|a, b| a.reservation.id.cmp(&b.reservation.id));
    conditions.mark_met(kind);
}

fn resolve_placement_group(
    class: &NodeClass,
    found: &RegionResources,
    resolved: &mut ResolvedNodeClass,
    conditions: &mut Conditions,
) {
    let Some(term) = &class.placement_group else {
        return;
    };
    let kind = ConditionKind::PlacementGroupReady;
    let Some(all) = conditions.check_listing(kind, found.placement_groups.as_ref()) else {
        return;
    };
    let group = match term {
        PlacementGroupTerm::Name(name) => all.get(name),
        PlacementGroupTerm::Id(id) => all.values().find(|group| group.id == *id),
    };
    resolved.placement_group = group.cloned();
    conditions.check_found(kind, group.is_none(), Cause::PlacementGroupNotFound, || {
        format!("no available placement group matches {term:?}")
    });
}

/// Conditions, by kind.
#[derive(Default)]
struct Conditions(Vec<NodeClassCondition>);

impl Conditions {
    fn mark_met(&mut self, kind: ConditionKind) {
        self.0.push(NodeClassCondition::met(kind));
    }

    /// Returns the listing. If the listing failed, the error becomes the condition.
    fn check_listing<T, E: std::borrow::Borrow<ResolveError>>(
        &mut self,
        kind: ConditionKind,
        listed: Result<T, E>,
    ) -> Option<T> {
        match listed {
            Ok(all) => Some(all),
            Err(trouble) => {
                let ResolveError { cause, text } = trouble.borrow();
                self.0.push(NodeClassCondition::unmet(kind, *cause, text));
                None
            }
        }
    }

    fn check_found(
        &mut self,
        kind: ConditionKind,
        is_missing: bool,
        cause: Cause,
        text: impl FnOnce() -> String,
    ) {
        self.0.push(match is_missing {
            true => NodeClassCondition::unmet(kind, cause, text()),
            false => NodeClassCondition::met(kind),
        });
    }
}

/// Terms as written, for messages.
fn term_texts<T: std::fmt::Debug>(terms: &[T]) -> String {
    let texts: Vec<String> = terms.iter().map(|term| format!("{term:?}")).collect();
    texts.join(" or ")
}

fn image_terms(all: &[ImageTerm]) -> String {
    all.iter()
        .map(|term| match term {
            ImageTerm::Alias { family, version } => {
                format!("alias = \"{}@{version}\"", family.as_str())
            }
            ImageTerm::Id(id) => format!("id = {id:?}"),
            ImageTerm::SsmParameter(name) => format!("ssm_parameter = {name:?}"),
            ImageTerm::Search { name, owner, tags } => {
                let name = name.iter().map(|name| format!("name = {name:?}"));
                let owner = owner.iter().map(|owner| format!("owner = {owner:?}"));
                let tags = Some(tags).filter(|tag| !tag.is_empty());
                let tags = tags.iter().map(|tag| format!("tags = {tag:?}"));
                name.chain(owner).chain(tags).collect::<Vec<_>>().join(", ")
            }
        })
        .collect::<Vec<_>>()
        .join(" or ")
}

/// Returns the role of a node class whose instance profile Outrigger creates.
pub fn role_of(class: &NodeClass) -> Option<&str> {
    match class.identity.as_ref()? {
        NodeIdentity::Role(role) => Some(role),
        NodeIdentity::Profile(_) => None,
    }
}
