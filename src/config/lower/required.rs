//! Checks that node classes have all arguments that EC2 needs for a launch.

use crate::config::diagnostic::ProblemCode;
use crate::config::lower::node_class;
use crate::config::report::error_at;
use crate::model::claim::TAG_NAME;
use crate::model::cluster::Cluster;

/// EC2 allows 50 tags. Outrigger adds up to 20 tags to a claim, its node and its volumes, and
/// `Name`, which the user may set. Source: EC2, tag restrictions.
const TAGS_MAX: usize = 29;

/// Reports missing blocks and arguments in the node classes of a managed EC2 cluster.
pub(super) fn check_required(cluster: &Cluster, used: &[&node_class::NodeClassSpec]) {
    for draft in used {
        let section = &draft.section;
        let name = cluster.name.as_str();
        let mut missing: Vec<&str> = ["ami", "subnet", "security_group"]
            .into_iter()
            .filter(|kind| section.block(kind).is_none())
            .collect();
        if !section.is_set("role") && !section.is_set("instance_profile") {
            missing.push("role or instance_profile");
        }
        if !missing.is_empty() {
            let detail =
                format!("The managed cluster {name:?} cannot launch nodes from this node class.");
            let finding = error_at(ProblemCode::MissingArgument, section.header, detail)
                .label(format!("missing: {}", missing.join(", ")));
            finding.once().report(section);
        }
        if cluster.isolated_vpc && section.is_set("role") {
            let detail = format!(
                "The cluster {name:?} has isolated_vpc = true, so Outrigger cannot create an \
                 instance profile for the role in IAM."
            );
            let finding = error_at(ProblemCode::Conflict, section.value_span("role"), detail)
                .help("create an instance profile for the role, and set instance_profile instead");
            finding.once().report(section);
        }
        let keys = cluster.tags.keys().chain(draft.class.tags.keys());
        let keys = keys.filter(|key| *key != TAG_NAME);
        let count = keys.collect::<std::collections::BTreeSet<_>>().len();
        if count > TAGS_MAX {
            let detail = format!(
                "The node class and the cluster {name:?} have {count} tags other than Name. At \
                 most {TAGS_MAX} are allowed, because Outrigger adds its own."
            );
            let span = section.value_span("tags");
            let finding = error_at(ProblemCode::LimitExceeded, span, detail);
            finding.once().report(section);
        }
    }
}
