//! Converts selector terms: images, subnets, security groups and reservations.

use super::{at_most, report_argument, report_exclusive};
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::id_format::parse_alias;
use crate::config::report::error_at;
use crate::model::labels::Labels;
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::node_class::network::{
    MatchCriteria, PlacementGroupTerm, ReservationTerm, SecurityGroupTerm, SubnetTerm,
};

/// Maximum number of terms of one type. Source: spec/aws.md §1.1.
const TERMS_MAX: usize = 30;

/// The arguments of a type of selector term.
struct TermShape {
    kind: &'static str,
    /// Arguments that are sufficient alone and exclude all others.
    alone: &'static [&'static str],
    /// Arguments that may be combined and are sufficient.
    search: &'static [&'static str],
    /// Arguments that only narrow a search.
    narrow: &'static [&'static str],
}

const AMI: TermShape = TermShape {
    kind: "ami",
    alone: &["alias", "id", "ssm_parameter"],
    search: &["name", "tags"],
    narrow: &["owner"],
};

const SUBNET: TermShape =
    TermShape { kind: "subnet", alone: &["id"], search: &["tags"], narrow: &[] };

const SECURITY_GROUP: TermShape =
    TermShape { kind: "security_group", alone: &["id", "name"], search: &["tags"], narrow: &[] };

const CAPACITY_RESERVATION: TermShape = TermShape {
    kind: "capacity_reservation",
    alone: &["id"],
    search: &["instance_match_criteria", "tags"],
    narrow: &["owner"],
};

const PLACEMENT_GROUP: TermShape =
    TermShape { kind: "placement_group", alone: &["id", "name"], search: &[], narrow: &[] };

impl TermShape {
    /// Checks and returns the terms of this type.
    fn terms<'a>(&'a self, section: &'a DecodedBlock) -> impl Iterator<Item = &'a DecodedBlock> {
        at_most(section, self.kind, TERMS_MAX);
        for term in section.blocks(self.kind) {
            self.check_term(term);
        }
        section.blocks(self.kind)
    }

    fn check_term(&self, term: &DecodedBlock) {
        let all = [self.alone, self.search, self.narrow].concat();
        let used: Vec<&str> = all.iter().filter(|name| term.is_set(name)).copied().collect();
        let Some(first) = used.iter().find(|name| !self.narrow.contains(name)) else {
            let kind = self.kind;
            let detail = match used.first() {
                Some(only) => format!("{only} alone does not select any {kind}."),
                None if self.search.is_empty() => "The block must have an id or a name.".to_owned(),
                None => "A block without arguments would select everything.".to_owned(),
            };
            let names = [self.alone, self.search].concat().join(", ");
            error_at(ProblemCode::MissingArgument, term.header, detail)
                .help(format!("write one of: {names}"))
                .report(term);
            return;
        };
        if self.alone.contains(first) {
            for other in used.iter().filter(|name| *name != first) {
                report_exclusive(term, first, other);
            }
        }
    }
}

pub(super) fn image_terms(section: &DecodedBlock) -> Vec<ImageTerm> {
    let terms: Vec<&DecodedBlock> = AMI.terms(section).collect();
    if let Some(alias) = terms.iter().find(|term| term.is_set("alias"))
        && terms.len() > 1
    {
        let detail = "An ami block with an alias must be the only ami block.";
        let mut finding = error_at(ProblemCode::Conflict, alias.value_span("alias"), detail);
        if let Some(other) = terms.iter().find(|term| term.header != alias.header) {
            finding = finding.also(other.header, "another ami block");
        }
        finding.report(section);
    }
    terms.into_iter().filter_map(image_term).collect()
}

fn image_term(term: &DecodedBlock) -> Option<ImageTerm> {
    if let Some((family, version)) = term.text("alias").and_then(parse_alias) {
        let version = version.to_owned();
        return Some(ImageTerm::Alias { family, version });
    }
    let id = term.owned_text("id").map(ImageTerm::Id);
    let found = id.or_else(|| term.owned_text("ssm_parameter").map(ImageTerm::SsmParameter));
    found.or_else(|| {
        let (name, tags) = (term.owned_text("name"), term.string_map("tags"));
        (name.is_some() || !tags.is_empty()).then(|| ImageTerm::Search {
            name,
            owner: term.owned_text("owner"),
            tags,
        })
    })
}

/// The configured family, or else the family of the alias.
pub(super) fn ami_family(section: &DecodedBlock, images: &[ImageTerm]) -> AmiFamily {
    let written = section.text("ami_family").and_then(AmiFamily::parse);
    let of_alias = images.iter().find_map(|image| match image {
        ImageTerm::Alias { family, .. } => Some(*family),
        _ => None,
    });
    let block = section.block("ami");
    let has_alias = section.blocks("ami").any(|term| term.is_set("alias"));
    if let (Some(block), false, false) = (block, has_alias, section.is_set("ami_family")) {
        let detail = "The image family is unknown: no ami block has an alias.";
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .label("ami_family is missing")
            .also(block.header, "no alias")
            .help("write ami_family = \"al2023\", or \"custom\" if you provide all user data")
            .report(section);
    }
    if let (Some(family), Some(alias)) = (written, of_alias)
        && family != alias
        && family != AmiFamily::Custom
    {
        let detail = "ami_family must be the family of the alias, or \"custom\".";
        let code = ProblemCode::Conflict;
        report_argument(section, "ami_family", code, detail, None);
    }
    written.or(of_alias).unwrap_or_default()
}

pub(super) fn subnet_terms(section: &DecodedBlock) -> Vec<SubnetTerm> {
    let terms = SUBNET.terms(section);
    let lowered = terms.filter_map(|term| {
        let id = term.owned_text("id").map(SubnetTerm::Id);
        id.or_else(|| searched_tags(term).map(SubnetTerm::Tags))
    });
    lowered.collect()
}

pub(super) fn security_groups(section: &DecodedBlock) -> Vec<SecurityGroupTerm> {
    let terms = SECURITY_GROUP.terms(section);
    let lowered = terms.filter_map(|term| {
        let id = term.owned_text("id").map(SecurityGroupTerm::Id);
        id.or_else(|| term.owned_text("name").map(SecurityGroupTerm::Name))
            .or_else(|| searched_tags(term).map(SecurityGroupTerm::Tags))
    });
    lowered.collect()
}

/// The tags to search for. `None` if there are none.
fn searched_tags(term: &DecodedBlock) -> Option<Labels> {
    Some(term.string_map("tags")).filter(|tags| !tags.is_empty())
}

pub(super) fn reservation_terms(section: &DecodedBlock) -> Vec<ReservationTerm> {
    let terms = CAPACITY_RESERVATION.terms(section);
    let lowered = terms.filter_map(|term| {
        let id = term.owned_text("id").map(ReservationTerm::Id);
        id.or_else(|| {
            let criteria = match term.text("instance_match_criteria") {
                Some("open") => Some(MatchCriteria::Open),
                Some("targeted") => Some(MatchCriteria::Targeted),
                _ => None,
            };
            let tags = term.string_map("tags");
            (criteria.is_some() || !tags.is_empty()).then(|| ReservationTerm::Search {
                owner: term.owned_text("owner"),
                criteria,
                tags,
            })
        })
    });
    lowered.collect()
}

pub(super) fn placement_group(section: &DecodedBlock) -> Option<PlacementGroupTerm> {
    let term = PLACEMENT_GROUP.terms(section).next()?;
    let id = term.owned_text("id").map(PlacementGroupTerm::Id);
    id.or_else(|| term.owned_text("name").map(PlacementGroupTerm::Name))
}
