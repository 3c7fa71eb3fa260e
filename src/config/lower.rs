//! Converts decoded blocks to model types: resolves references and checks rules across arguments.

use std::collections::BTreeMap;

use hcl::Value;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::eval::Frame;
use crate::config::kubernetes_names::{matches_pattern, name_fault};
use crate::config::report::{SpannedDiagnostic, error_at, warning_at};
use crate::config::schema::blocks::root_block;
use crate::config::settings::Config;
use crate::config::source::Span;
use crate::config::syntax::{Block, PathStep};
use crate::config::value::{did_you_mean, elements, listed_names, type_name};
use crate::model::cluster::Cluster;
use crate::model::id::NodeClassName;
use crate::model::pool::Pool;

// Maps of resource quantities.
mod quantities;
// Cron schedules and time windows.
mod schedule;
// Budgets, maintenance windows, cooldowns.
mod disruption;
// Installation, fleet and telemetry blocks.
mod installation;
// Scheduler block: batching and planning.
mod scheduler;
// `require` blocks.
mod requirement;
// Pools, with `defaults "pool"`.
mod pool;
// Overlays, with conflict checks.
mod overlay;
// Buffers.
mod buffer;
// Node classes.
mod node_class;
// Clusters, without their pools.
mod cluster;
// Required arguments of node classes for EC2.
mod required;
// Checks that user data can be generated.
mod user_data;

impl<'a> Decoder<'a> {
    /// All blocks of a type.
    pub(super) fn blocks_of(&self, kind: &'static str) -> impl Iterator<Item = &'a Block> {
        let blocks = self.blocks.iter();
        blocks.filter(move |block| block.kind == kind)
    }

    /// Decodes all blocks of a type that has no `for_each`.
    pub(super) fn decode_sections(&self, kind: &'static str) -> Vec<DecodedBlock> {
        let Some(schema) = root_block().block(kind) else {
            return Vec::new();
        };
        self.blocks_of(kind).map(|block| self.decode_block(block, schema, None)).collect()
    }

    /// Decodes all blocks of a type, once for each element of their `for_each`, with the key of the
    /// element. The flag is false if a `for_each` could not be evaluated.
    fn decode_instances(&self, kind: &'static str) -> (Vec<BlockInstance>, bool) {
        let mut instances = Vec::new();
        let mut complete = true;
        let Some(schema) = root_block().block(kind) else {
            return (instances, complete);
        };
        for block in self.blocks_of(kind) {
            let attr = block.body.attrs.iter().find(|attr| attr.name == "for_each");
            let Some(attr) = attr else {
                let section = self.decode_block(block, schema, None);
                instances.push(BlockInstance { section, key: None });
                continue;
            };
            let Some(evaluated) = self.evaluate(&attr.expr, &block.title()) else {
                complete = false;
                continue;
            };
            if let Some(finding) =
                for_each_fault(&evaluated.value, evaluated.sensitive, attr.expr.span)
            {
                self.reporter.add(finding.within(&block.title()));
                complete = false;
                continue;
            }
            for (index, value) in elements(&evaluated.value).unwrap_or_default() {
                let key = if evaluated.value.is_array() { value } else { &index };
                let members = [("key", key), ("value", value)];
                let members = members.map(|(name, value)| (name.to_owned(), value.clone()));
                let frame = Frame {
                    name: "each",
                    value: &Value::Object(hcl::Map::from_iter(members)),
                    sensitive: false,
                    outer: None,
                };
                let section = self.decode_block(block, schema, Some(&frame));
                let key = key.as_str().map(str::to_owned);
                instances.push(BlockInstance { section, key });
            }
        }
        (instances, complete)
    }
}

/// A block, or its instance for one element of its `for_each`.
struct BlockInstance {
    section: DecodedBlock,
    key: Option<String>,
}

fn for_each_fault(value: &Value, sensitive: bool, span: Span) -> Option<SpannedDiagnostic> {
    let detail = match value {
        _ if sensitive => "for_each must not be sensitive: its keys become names.".to_owned(),
        Value::Object(_) => return None,
        Value::Array(items) if items.iter().all(Value::is_string) => return None,
        Value::Array(_) => "A list in for_each must contain only strings.".to_owned(),
        other => format!("for_each must be a map or a list of strings, not {}.", type_name(other)),
    };
    let finding = error_at(ProblemCode::InvalidForEach, span, detail);
    Some(finding.help("write for_each = { for … : key => value }, or a list of strings"))
}

/// Converts all blocks to model types.
pub(super) fn lower_blocks(reader: &Decoder<'_>) -> Config {
    let installation = installation::lower_installation(reader);
    let (batching, scheduling) = scheduler::lower_scheduler(reader);
    let telemetry = installation::lower_telemetry(reader);
    let schedules = schedule::lower_schedules(reader);
    let (fleet, max_disrupted_per_reload) = installation::lower_fleet(reader, &schedules);
    let sweeps = reader.decode_sections("sweep");
    let sweeps = schedule::sweep_schedules(&sweeps, None);
    let (mut clusters, complete) =
        cluster::lower_clusters(reader, &installation, &schedules, &sweeps);
    let classes = node_class::lower_node_classes(reader);
    let pools = pool::lower_pools(reader, &schedules);
    let overlays = overlay::lower_overlays(reader, &pools);
    let buffers = buffer::lower_buffers(reader, &pools, &schedules);
    let mut all_used = Vec::with_capacity(clusters.len());
    for draft in &mut clusters {
        let managed = draft.managed;
        let cluster = &mut draft.cluster;
        cluster.batching = batching;
        cluster.safeguards.max_disrupted_per_reload = max_disrupted_per_reload;
        cluster.scheduling = scheduling.clone();
        let used = give_pools(cluster, &pools, &classes);
        if managed && made_by_ec2(cluster) {
            required::check_required(cluster, &used);
        }
        all_used.push(used);
        overlay::assign_overlays(&overlays, cluster);
        buffer::assign_buffers(&buffers, cluster);
    }
    if complete {
        let lowered: Vec<&Cluster> = clusters.iter().map(|draft| &draft.cluster).collect();
        let names: Vec<String> = lowered.iter().map(|cluster| cluster.name.0.clone()).collect();
        let patterns = pools.iter().map(|spec| (&spec.section, &spec.clusters));
        let patterns = patterns
            .chain(classes.iter().map(|spec| (&spec.section, &spec.clusters)))
            .chain(overlays.iter().map(|spec| (&spec.section, &spec.clusters)))
            .chain(buffers.iter().map(|spec| (&spec.section, &spec.clusters)));
        for (section, patterns) in patterns {
            check_clusters(section, patterns, &names);
        }
        overlay::check_conflicts(&overlays, &lowered);
        buffer::check_clusters(&buffers, &lowered);
    }
    // This check runs only without earlier errors, which are reported more precisely.
    if !reader.reporter.has_errors() {
        let with_classes = clusters.iter().map(|draft| &draft.cluster).zip(&all_used);
        for (cluster, used) in with_classes.filter(|(cluster, _)| made_by_ec2(cluster)) {
            user_data::check_user_data(cluster, used);
        }
    }
    let mut clusters: Vec<Cluster> = clusters.into_iter().map(|draft| draft.cluster).collect();
    clusters.sort_by(|one, other| one.name.cmp(&other.name));
    Config { clusters, fleet, telemetry, ..Config::default() }
}

/// Returns whether EC2 launches the nodes of a cluster.
fn made_by_ec2(cluster: &Cluster) -> bool {
    cluster.simulated.is_none() && cluster.exec.is_none()
}

/// Sets the pools of a cluster and the node classes they use. Returns these node classes.
fn give_pools<'a>(
    cluster: &mut Cluster,
    pools: &[pool::PoolSpec],
    classes: &'a [node_class::NodeClassSpec],
) -> Vec<&'a node_class::NodeClassSpec> {
    let mut cluster_pools: Vec<Pool> = Vec::new();
    let mut used: BTreeMap<&NodeClassName, &node_class::NodeClassSpec> = BTreeMap::new();
    for draft in pools.iter().filter(|pool| has_matching_name(&pool.clusters, cluster)) {
        let class = class_of(draft, classes, cluster);
        cluster_pools.push(Pool {
            node_class: class.map(|class| class.class.name.clone()),
            ..draft.pool.clone()
        });
        used.extend(class.map(|class| (&class.class.name, class)));
    }
    cluster_pools.sort_by(|one, other| {
        let weight = other.weight.cmp(&one.weight);
        weight.then_with(|| one.name.cmp(&other.name))
    });
    let used: Vec<&node_class::NodeClassSpec> = used.into_values().collect();
    cluster.pools = cluster_pools;
    cluster.node_classes = used.iter().map(|draft| draft.class.clone()).collect();
    used
}

/// Reports a name that is not valid for `what`, such as `a pool`. An empty label is already
/// reported.
fn check_name(section: &DecodedBlock, name: &str, what: &str) {
    if let Some(why) = name_fault(name).filter(|_| !section.label().is_empty()) {
        let detail = format!("{name:?} is not a valid name for {what}. {why}");
        error_at(ProblemCode::InvalidLabel, section.label_span(), detail).report(section);
    }
}

/// Reports two arguments that exclude each other. Returns whether both are set.
fn report_exclusive(section: &DecodedBlock, one: &str, other: &str) -> bool {
    let (Some(first), Some(second)) = (section.get(one), section.get(other)) else {
        return false;
    };
    let detail = format!("{one} and {other} exclude each other.");
    error_at(ProblemCode::Conflict, second.name_span, detail)
        .also(first.name_span, "")
        .report(section);
    true
}

/// The clusters of a block: all clusters if `clusters` is not set.
fn cluster_patterns(section: &DecodedBlock) -> Vec<String> {
    // An invalid `clusters` means no clusters, not all clusters.
    let everywhere = if section.is_set("clusters") { Vec::new() } else { vec!["*".to_owned()] };
    let patterns = section.texts("clusters");
    patterns.map_or(everywhere, <[String]>::to_vec)
}

fn has_matching_name(patterns: &[String], cluster: &Cluster) -> bool {
    patterns.iter().any(|pattern| matches_pattern(pattern, cluster.name.as_str()))
}

/// Reports clusters of a block that do not exist.
fn check_clusters(section: &DecodedBlock, patterns: &[String], names: &[String]) {
    if !section.is_set("clusters") {
        return;
    }
    for (index, pattern) in patterns.iter().enumerate() {
        if pattern == "*" || names.iter().any(|name| matches_pattern(pattern, name)) {
            continue;
        }
        let span = section.inner_span("clusters", PathStep::Index(index));
        let known = names.iter().map(String::as_str);
        let finding = if pattern.contains('*') {
            let detail = format!("No cluster matches the pattern {pattern:?}.");
            warning_at(ProblemCode::MatchesNothing, span, detail)
        } else {
            let detail = format!("There is no cluster named {pattern:?}.");
            error_at(ProblemCode::UnknownReference, span, detail)
        };
        let help = did_you_mean(pattern, known.clone())
            .or_else(|| listed_names(&known.take(8).collect::<Vec<_>>()));
        finding.maybe_help(help).report(section);
    }
}

/// The node class a pool uses in a cluster.
fn class_of<'a>(
    pool: &pool::PoolSpec,
    classes: &'a [node_class::NodeClassSpec],
    cluster: &Cluster,
) -> Option<&'a node_class::NodeClassSpec> {
    let ec2 = made_by_ec2(cluster);
    let Some((name, span)) = &pool.node_class else {
        if ec2 && !pool.section.is_set("node_class") {
            let detail = format!(
                "The pool is for the cluster {:?}, whose nodes EC2 launches, so it requires a \
                 node_class.",
                cluster.name.as_str()
            );
            error_at(ProblemCode::MissingArgument, pool.section.header, detail)
                .label("node_class is missing")
                .help("write node_class = node_class.NAME, or set it in defaults \"pool\"")
                .once()
                .report(&pool.section);
        }
        return None;
    };
    let candidates: Vec<&node_class::NodeClassSpec> =
        classes.iter().filter(|class| class.class.name.as_str() == name).collect();
    let fitting: Vec<&&node_class::NodeClassSpec> =
        candidates.iter().filter(|class| has_matching_name(&class.clusters, cluster)).collect();
    match fitting.as_slice() {
        [only] => Some(only),
        [] if !ec2 || candidates.is_empty() => None,
        [] => {
            let detail = format!(
                "The pool is for the cluster {:?}, but its node class {name:?} is not.",
                cluster.name.as_str()
            );
            let class = &candidates[0].section;
            error_at(ProblemCode::UnknownReference, *span, detail)
                .also(class.value_span("clusters"), "the clusters of the node class")
                .once()
                .report(&pool.section);
            None
        }
        [first, ..] => {
            let detail = format!(
                "{} node classes named {name:?} are for the cluster {:?}.",
                fitting.len(),
                cluster.name.as_str()
            );
            error_at(ProblemCode::AmbiguousReference, *span, detail)
                .also(
                    first.section.value_span("clusters"),
                    "every element of for_each is for this cluster",
                )
                .help("write clusters = [each.key] in the node class")
                .once()
                .report(&pool.section);
            None
        }
    }
}
