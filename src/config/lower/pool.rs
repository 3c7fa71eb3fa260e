//! Converts pools, with the defaults of `defaults "pool"`.

use jiff::SignedDuration;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::kubernetes_names::label_value_fault;
use crate::config::lower::disruption::{budgets, windows};
use crate::config::lower::quantities::node_limits;
use crate::config::lower::requirement::{RequirementOwner, refuse_key, restriction_of};
use crate::config::lower::schedule::Schedules;
use crate::config::lower::{check_name, cluster_patterns, requirement};
use crate::config::report::{error_at, warning_at};
use crate::config::source::Span;
use crate::config::syntax::PathStep;
use crate::model::claim::{TAG_VALUE_MAX, startup_taints_tag};
use crate::model::node::ConditionStatus;
use crate::model::pool::{Consolidation, Disruption, OnBlocked, Pool, RepairPolicy, Safety};
use crate::model::requirement::Requirement;
use crate::model::taint::{Effect, Taint};

/// A pool, with the settings that do not depend on a cluster.
pub(super) struct PoolSpec {
    pub(super) pool: Pool,
    /// Names of clusters, or patterns.
    pub(super) clusters: Vec<String>,
    /// The name of the node class, and the span of its reference.
    pub(super) node_class: Option<(String, Span)>,
    pub(super) section: DecodedBlock,
}

pub(super) fn lower_pools(reader: &Decoder<'_>, schedules: &Schedules) -> Vec<PoolSpec> {
    let defaults = reader.decode_sections("defaults");
    for section in defaults.iter().filter(|section| !matches!(section.label(), "" | "pool")) {
        let detail = format!("There are no defaults for blocks of type {:?}.", section.label());
        error_at(ProblemCode::BlockLabel, section.label_span(), detail)
            .help("write defaults \"pool\" { … }")
            .report(section);
    }
    let defaults = defaults.iter().find(|section| section.label() == "pool");
    let sections = reader.decode_sections("pool");
    sections.into_iter().map(|section| lower_pool(section, defaults, schedules)).collect()
}

/// The arguments of a pool, then those of the defaults.
struct WithDefaults<'a>([Option<&'a DecodedBlock>; 2]);

impl<'a> WithDefaults<'a> {
    fn find_setting<T>(&self, get: impl Fn(&'a DecodedBlock) -> Option<T>) -> Option<T> {
        self.0.iter().flatten().find_map(|section| get(section))
    }

    fn or_never(&self, name: &str, default: Option<SignedDuration>) -> Option<SignedDuration> {
        self.find_setting(|section| section.duration_or_never(name)).unwrap_or(default)
    }

    fn duration(&self, name: &str, default: SignedDuration) -> SignedDuration {
        self.find_setting(|section| section.duration(name)).unwrap_or(default)
    }

    fn within_block(&self, name: &str) -> WithDefaults<'a> {
        WithDefaults(self.0.map(|section| section.and_then(|section| section.block(name))))
    }
}

fn lower_pool(
    section: DecodedBlock,
    defaults: Option<&DecodedBlock>,
    schedules: &Schedules,
) -> PoolSpec {
    let name = section.label();
    check_name(&section, name, "a pool");
    let layers = WithDefaults([Some(&section), defaults]);
    let default = Pool::new(name);
    let requirements = requirement::lower_requirements(&section, RequirementOwner::Pool);
    let mut pool = Pool {
        weight: layers.find_setting(|section| section.count("weight")).unwrap_or(default.weight),
        replicas: section.count("replicas"),
        labels: section.string_map("labels"),
        annotations: section.string_map("annotations"),
        taints: lower_taints(&section, "taint"),
        startup_taints: lower_taints(&section, "startup_taint"),
        limits: node_limits(&section),
        expire_after: layers.or_never("expire_after", default.expire_after),
        termination_grace_period: layers
            .or_never("termination_grace_period", default.termination_grace_period),
        expire_hard_after: layers.or_never("expire_hard_after", default.expire_hard_after),
        launch_timeout: layers.duration("launch_timeout", default.launch_timeout),
        registration_timeout: layers.duration("registration_timeout", default.registration_timeout),
        initialization_timeout: layers
            .duration("initialization_timeout", default.initialization_timeout),
        disruption: lower_disruption(&layers, &default.disruption, schedules),
        repair: match layers.find_setting(|section| section.flag("auto_repair")) {
            Some(false) => Vec::new(),
            _ => repair_policies(&section, default.repair),
        },
        requirements,
        ..default
    };
    check_age(&section, &pool);
    if let Some(replicas) = pool.replicas {
        check_static(&section, replicas, pool.limits.nodes);
        // Defaults that do not apply to a static pool are ignored.
        pool.weight = 0;
        pool.disruption.consolidate_after = None;
        pool.disruption.utilization_threshold = None;
        pool.disruption.unneeded_for = SignedDuration::ZERO;
    }
    check_labels(&section, &pool);
    let node_class = layers.find_setting(|section| {
        let name = section.reference("node_class")?;
        Some((name.to_owned(), section.value_span("node_class")))
    });
    PoolSpec { pool, clusters: cluster_patterns(&section), node_class, section }
}

/// Arguments that only affect consolidation.
const OF_CONSOLIDATION: [&str; 5] = [
    "consolidation",
    "consolidate_after",
    "utilization_threshold",
    "spot_to_spot_min_types",
    "unneeded_for",
];
/// The repair policies: the defaults, replaced or extended by the `repair` blocks.
fn repair_policies(section: &DecodedBlock, mut policies: Vec<RepairPolicy>) -> Vec<RepairPolicy> {
    let mut seen: Vec<(&str, ConditionStatus, Span)> = Vec::new();
    for inner in section.blocks("repair") {
        let status = inner.text("status").and_then(ConditionStatus::parse);
        let status = status.unwrap_or(ConditionStatus::False);
        let (Some(condition), Some(after)) =
            (inner.text("condition"), inner.duration_or_never("after"))
        else {
            continue;
        };
        let same = seen.iter().find(|previous| (previous.0, previous.1) == (condition, status));
        if let Some((.., before)) = same {
            let detail = format!(
                "Two blocks have the condition {condition} and the status {}.",
                status.as_str()
            );
            error_at(ProblemCode::DuplicateBlock, inner.header, detail)
                .duplicate_of(*before)
                .report(inner);
        }
        seen.push((condition, status, inner.header));
        policies.retain(|policy| policy.condition != condition || policy.status != status);
        policies.push(RepairPolicy { condition: condition.to_owned(), status, after });
    }
    policies
}

/// Warns if `expire_hard_after` disrupts nodes before `expire_after` can replace them.
fn check_age(section: &DecodedBlock, pool: &Pool) {
    let (Some(soft), Some(hard)) = (pool.expire_after, pool.expire_hard_after) else {
        return;
    };
    if hard <= soft && section.is_set("expire_hard_after") {
        let span = section.value_span("expire_hard_after");
        let detail = format!(
            "expire_hard_after ({hard:#}) is not longer than expire_after ({soft:#}), so nodes are \
             not replaced before they are disrupted."
        );
        warning_at(ProblemCode::OutOfRange, span, detail)
            .help("reduce expire_after, or increase expire_hard_after")
            .report(section);
    }
}

/// Reports arguments that have no effect in a static pool. Source: spec/scheduling.md §3.1.
fn check_static(section: &DecodedBlock, replicas: u32, nodes: Option<u32>) {
    let place = section.value_span("replicas");
    let mut ignored: Vec<(&DecodedBlock, Span, String)> = Vec::new();
    let settings = section.block("disruption").into_iter();
    let settings = settings.flat_map(|inner| OF_CONSOLIDATION.map(|name| (inner, name)));
    for (block, name) in [(section, "weight")].into_iter().chain(settings) {
        let read = block.get(name);
        ignored.extend(read.map(|read| (block, read.name_span, name.to_owned())));
    }
    for (name, _) in section.quantities("limits") {
        if name != "nodes" {
            let span = section.inner_span("limits", PathStep::KeyItself(name.clone()));
            ignored.push((section, span, format!("a limit on {name}")));
        }
    }
    for (block, span, setting) in ignored {
        let detail = format!(
            "A static pool has a fixed number of nodes, so {setting} does not apply to it."
        );
        error_at(ProblemCode::Conflict, span, detail)
            .also(place, "the pool is static")
            .report(block);
    }
    if let Some(nodes) = nodes.filter(|nodes| *nodes < replicas) {
        let span = section.inner_span("limits", PathStep::Key("nodes".to_owned()));
        let detail =
            format!("The pool is limited to {nodes} nodes, so it cannot have {replicas} replicas.");
        warning_at(ProblemCode::OutOfRange, span, detail).also(place, "").report(section);
    }
}

fn check_labels(section: &DecodedBlock, pool: &Pool) {
    for (key, value) in &pool.labels {
        if let Some(why) = restriction_of(key) {
            let detail = format!("A pool cannot set the label {key:?}: {why}.");
            let span = section.inner_span("labels", PathStep::KeyItself(key.clone()));
            section.error(ProblemCode::RestrictedLabel, span, detail);
            continue;
        }
        let label = Requirement::is_in([value.clone()]);
        let clash = pool.requirements.get(key).filter(|rule| !rule.has_intersection(&label));
        if let Some(rule) = clash {
            let detail = format!("The label is {value:?}, but the pool requires {key} {rule}.");
            let span = section.inner_span("labels", PathStep::Key(key.clone()));
            let mut finding = error_at(ProblemCode::Impossible, span, detail);
            let required = section.blocks("require").find(|inner| inner.label() == key);
            if let Some(required) = required {
                finding = finding.also(required.header, "required here");
            }
            finding.report(section);
        }
    }
}

fn lower_taints(section: &DecodedBlock, kind: &str) -> Vec<Taint> {
    let mut taints: Vec<(Taint, Span)> = Vec::new();
    for inner in section.blocks(kind) {
        let key = inner.label();
        if key.is_empty() || refuse_key(inner, RequirementOwner::Pool) {
            continue;
        }
        let value = inner.text("value").unwrap_or_default();
        if let Some(why) = label_value_fault(value) {
            let detail = format!("{value:?} is not a valid taint value. {why}");
            let code = ProblemCode::InvalidLabel;
            inner.error(code, inner.value_span("value"), detail);
        }
        let Some(effect) = inner.text("effect").and_then(Effect::parse) else {
            continue;
        };
        let taint = Taint { key: key.to_owned(), value: value.to_owned(), effect };
        if let Some((_, before)) =
            taints.iter().find(|other| other.0.key == taint.key && other.0.effect == effect)
        {
            let detail =
                format!("Two taints have the key {key:?} and the effect {}.", effect.as_str());
            error_at(ProblemCode::DuplicateBlock, inner.header, detail)
                .duplicate_of(*before)
                .report(inner);
        }
        taints.push((taint, inner.header));
    }
    let all: Vec<Taint> = taints.iter().map(|(taint, _)| taint.clone()).collect();
    let length = startup_taints_tag(&all).chars().count();
    if kind == "startup_taint" && length > TAG_VALUE_MAX {
        let last = taints.last().map_or(section.header, |(_, span)| *span);
        let detail = format!(
            "The startup taints of the pool have {length} characters. They are stored in an \
             instance tag, which can have at most {TAG_VALUE_MAX}."
        );
        error_at(ProblemCode::LimitExceeded, last, detail)
            .help("use fewer startup taints, or shorter keys")
            .report(section);
    }
    all
}

fn lower_disruption(
    layers: &WithDefaults<'_>,
    default: &Disruption,
    schedules: &Schedules,
) -> Disruption {
    let inner = layers.within_block("disruption");
    let consolidation = inner.find_setting(|section| match section.text("consolidation")? {
        "empty" => Some(Consolidation::Empty),
        "balanced" => Some(Consolidation::Balanced),
        _ => Some(Consolidation::EmptyOrUnderutilized),
    });
    let safety = inner.find_setting(|section| match section.text("safety")? {
        "conservative" => Some(Safety::Conservative),
        _ => Some(Safety::Standard),
    });
    let threshold = inner.find_setting(|section| section.count("utilization_threshold"));
    let types = inner.find_setting(|section| section.count("spot_to_spot_min_types"));
    let on_blocked = inner.find_setting(|section| match section.text("on_blocked")? {
        "abort" => Some(OnBlocked::Abort),
        "force" => Some(OnBlocked::Force),
        _ => Some(OnBlocked::Wait),
    });
    let pool_block = inner.0[0];
    Disruption {
        consolidation: consolidation.unwrap_or(default.consolidation),
        consolidate_after: inner.or_never("consolidate_after", default.consolidate_after),
        safety: safety.unwrap_or(default.safety),
        min_age: inner.duration("min_age", default.min_age),
        utilization_threshold: threshold.or(default.utilization_threshold),
        spot_to_spot_min_types: types.unwrap_or(default.spot_to_spot_min_types),
        unneeded_for: inner.duration("unneeded_for", default.unneeded_for),
        on_blocked: on_blocked.unwrap_or(default.on_blocked),
        drain_timeout: inner.duration("drain_timeout", default.drain_timeout),
        budgets: match pool_block.filter(|section| section.block("budget").is_some()) {
            Some(section) => budgets(section, schedules),
            None => default.budgets.clone(),
        },
        windows: pool_block.map_or_else(Vec::new, |section| windows(section, schedules)),
    }
}
