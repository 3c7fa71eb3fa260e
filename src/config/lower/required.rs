//! Whether node classes say enough for EC2 to make nodes of them.
//! It must not know whether AWS has what they name.

use crate::config::decode::Decoder;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::node_class;
use crate::config::report::SpannedDiagnostic;
use crate::model::cluster::Cluster;

/// EC2 allows 50 tags; a claim, its node and its volumes have up to 19 of ours.
/// Source: EC2, tag restrictions.
const TAGS_MAX: usize = 31;

/// Reports what the node classes of a managed cluster lack whose nodes EC2 makes.
pub(super) fn check(reader: &Decoder<'_>, cluster: &Cluster, used: &[&node_class::NodeClassSpec]) {
    for draft in used {
        let section = &draft.section;
        let name = cluster.name.as_str();
        let mut missing: Vec<&str> = ["ami", "subnet", "security_group"]
            .into_iter()
            .filter(|kind| section.block(kind).is_none())
            .collect();
        if !section.has("role") && !section.has("instance_profile") {
            missing.push("role or instance_profile");
        }
        if !missing.is_empty() {
            let detail =
                format!("The managed cluster {name:?} needs more to make nodes of this class.");
            let finding =
                SpannedDiagnostic::error(ProblemCode::MissingArgument, section.header, detail)
                    .label(format!("without {}", missing.join(", ")))
                    .within(&section.title)
                    .once();
            reader.reporter.add(finding);
        }
        let keys = cluster.tags.keys().chain(draft.class.tags.keys());
        let count = keys.collect::<std::collections::BTreeSet<_>>().len();
        if count > TAGS_MAX {
            let detail = format!(
                "With the tags of the cluster {name:?} it has {count} tags: more than {TAGS_MAX} \
                 leave no room for ours."
            );
            let span = section.span("tags");
            let finding = SpannedDiagnostic::error(ProblemCode::LimitExceeded, span, detail);
            reader.reporter.add(finding.within(&section.title).once());
        }
    }
}
