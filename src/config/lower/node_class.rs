//! Lowers node classes, and checks what only the EC2 provider will use.
//! It must not know which pools use them.

use crate::config::lower::Blocks;
use crate::config::problem::ProblemCode;
use crate::config::read::{Reader, Section};
use crate::config::report::Finding;
use crate::model::id::NodeClassName;
use crate::model::node_class::{Identity, NodeClass};

/// A node class, and the clusters it is for.
pub(super) struct Draft {
    pub(super) class: NodeClass,
    /// Names of clusters, or patterns.
    pub(super) clusters: Vec<String>,
    pub(super) section: Section,
}

pub(super) fn lower(reader: &Reader<'_>, blocks: &Blocks<'_>) -> Vec<Draft> {
    let (instances, _) = reader.instances(blocks, "node_class");
    let drafts = instances.into_iter().map(|instance| {
        let section = instance.section;
        check(reader, &section);
        let everywhere = || vec!["*".to_owned()];
        Draft {
            class: NodeClass {
                name: NodeClassName::from(section.label()),
                identity: section
                    .owned("role")
                    .map(Identity::Role)
                    .or_else(|| section.owned("instance_profile").map(Identity::Profile)),
                user_data: section.owned("user_data").unwrap_or_default(),
                tags: section.map("tags"),
                ..NodeClass::default()
            },
            clusters: section
                .texts("clusters")
                .map_or_else(everywhere, <[String]>::to_vec),
            section,
        }
    });
    drafts.collect()
}

/// Arguments that are each enough to find something, and exclude one another.
const ALONE: [(&str, &[&str]); 4] = [
    ("ami", &["alias", "id", "ssm_parameter"]),
    ("subnet", &["id"]),
    ("security_group", &["id", "name"]),
    ("capacity_reservation", &["id"]),
];

/// Arguments that narrow a search, and may be used together.
const SEARCH: [&str; 3] = ["name", "owner", "tags"];

fn check(reader: &Reader<'_>, section: &Section) {
    exclusive(reader, section, "role", "instance_profile");
    for (kind, alone) in ALONE {
        for term in section.blocks(kind) {
            check_term(reader, term, kind, alone);
        }
    }
    if let Some(kubelet) = section.block("kubelet") {
        let (low, high) = (
            "image_gc_low_threshold_percent",
            "image_gc_high_threshold_percent",
        );
        if let (Some(least), Some(most)) = (kubelet.whole(low), kubelet.whole(high))
            && least >= most
        {
            let detail = format!("{low} is {least}, which is not below {high}, {most}.");
            let finding = Finding::error(ProblemCode::OutOfRange, kubelet.span(low), detail)
                .also(kubelet.span(high), "")
                .within(&kubelet.title);
            reader.reporter.add(finding);
        }
    }
}

fn exclusive(reader: &Reader<'_>, section: &Section, one: &str, other: &str) {
    if let (Some(first), Some(second)) = (section.get(one), section.get(other)) {
        let detail = format!("{one} and {other} exclude each other.");
        let finding = Finding::error(ProblemCode::Conflict, second.name_span, detail)
            .also(first.name_span, "")
            .within(&section.title);
        reader.reporter.add(finding);
    }
}

fn check_term(reader: &Reader<'_>, term: &Section, kind: &str, alone: &[&str]) {
    let search = SEARCH.iter().filter(|name| !alone.contains(name));
    let all: Vec<&str> = alone.iter().chain(search).copied().collect();
    let used: Vec<&str> = all.iter().filter(|name| term.has(name)).copied().collect();
    let Some(first) = used.first() else {
        let detail = format!("A {kind} block without arguments finds everything there is.");
        let finding = Finding::error(ProblemCode::MissingArgument, term.header, detail)
            .help("write tags = { … }, or an id")
            .within(&term.title);
        reader.reporter.add(finding);
        return;
    };
    if alone.contains(first) {
        for other in used.iter().skip(1) {
            exclusive(reader, term, first, other);
        }
    }
}
