//! Parses the blocks of a scenario.

use hcl_edit::structure::{Block, Body};
use jiff::{SignedDuration, Timestamp};

use crate::model::id::TypeName;
use crate::model::instance::CapacityType;
use crate::model::requirement::{Operator, Requirement};
use crate::model::taint::{Effect, Toleration, TolerationOperator};
use crate::sim::event_queue::time_after;
use crate::sim::scenario::decode::{ScenarioDecoder, time_of_day};
use crate::sim::scenario::{Outage, ReclaimCount, Scenario, Shortage, SpotReclaim};
use crate::sim::workload::{ScaleStep, SimPdb, Want, Workload, WorkloadKind};

/// 2026-03-03, a Tuesday, at midnight UTC. An arbitrary fixed date.
const DEFAULT_START: &str = "2026-03-03T00:00:00Z";

/// AL2023 nodes on EC2 take 40 to 60 s from launch to registration.
const DEFAULT_BOOT: SignedDuration = SignedDuration::from_secs(45);

/// Time at the end in which nodes left by faults can time out, one after another.
pub const DEFAULT_SETTLE: SignedDuration = SignedDuration::from_mins(90);

/// Duration at the end without any command.
pub const DEFAULT_CALM: SignedDuration = SignedDuration::from_mins(15);

/// A common type for node groups: 16 vCPUs, 64 GiB.
const DEFAULT_FIXED_TYPE: &str = "m5.4xlarge";

/// Maximum duration of a scenario: a month.
const DURATION_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);

/// Parses the `scenario` block.
pub fn read_scenario(reader: &mut ScenarioDecoder<'_>, block: &Block) -> Option<Scenario> {
    let body = &block.body;
    reader.check_known_names(
        body,
        &["title", "start", "duration", "settle", "calm", "boot", "fixed_type"],
        &[],
    );
    let start = match reader.read_timestamp(body, "start") {
        Some(start) => start,
        None => DEFAULT_START.parse().ok()?,
    };
    let duration = reader.read_duration(body, "duration").unwrap_or(SignedDuration::from_hours(24));
    if duration.is_zero() || duration > DURATION_MAX {
        reader.add_mistake_in(
            block,
            "the duration of a scenario must be more than 0s and at most 744h",
        );
        return None;
    }
    Some(Scenario {
        title: reader.read_text(body, "title").unwrap_or_default(),
        start,
        end: time_after(start, duration),
        settle: reader.read_duration(body, "settle").unwrap_or(DEFAULT_SETTLE),
        calm: reader.read_duration(body, "calm").unwrap_or(DEFAULT_CALM),
        boot: reader.read_duration(body, "boot").unwrap_or(DEFAULT_BOOT),
        fixed_type: TypeName(
            reader.read_text(body, "fixed_type").unwrap_or_else(|| DEFAULT_FIXED_TYPE.to_owned()),
        ),
        ..Scenario::default()
    })
}

/// Parses a workload.
pub fn read_workload(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    start: Timestamp,
) -> Option<Workload> {
    const ARGUMENTS: [&str; 9] = [
        "kind",
        "requests",
        "replicas",
        "node_selector",
        "max_skew",
        "priority",
        "run_for",
        "grace",
        "do_not_disrupt",
    ];
    let name = reader.only_label(block, "its name")?;
    let body = &block.body;
    reader.check_known_names(body, &ARGUMENTS, &["at", "pdb", "rollout", "toleration", "require"]);
    let owns = read_kind(reader, block)?;
    let mut workload = Workload::new(name, owns);
    workload.requests = reader.read_resources(body, "requests").unwrap_or_default();
    workload.node_selector = reader.read_labels(body, "node_selector").unwrap_or_default();
    workload.max_skew = reader.read_number(body, "max_skew");
    workload.steps = read_steps(reader, block, start);
    workload.rollouts = read_rollouts(reader, block, owns, start);
    workload.do_not_disrupt = reader.read_text(body, "do_not_disrupt");
    workload.budget = body.get_blocks("pdb").next().and_then(|pdb| read_budget(reader, pdb));
    for toleration in body.get_blocks("toleration") {
        workload.tolerations.extend(read_toleration(reader, toleration));
    }
    for require in body.get_blocks("require") {
        read_require(reader, require, &mut workload.wants);
    }
    if let Some(priority) = reader.read_number(body, "priority") {
        workload.priority = i32::try_from(priority).unwrap_or(i32::MAX);
    }
    if let Some(grace) = reader.read_duration(body, "grace") {
        workload.grace = grace;
    }
    if owns == WorkloadKind::DaemonSet && !workload.steps.is_empty() {
        reader.add_mistake_in(block, "a daemonset has no replicas: it runs on every node it fits");
    }
    if workload.max_skew == Some(0)
        || owns == WorkloadKind::DaemonSet && workload.max_skew.is_some()
    {
        reader.add_mistake_in(
            block,
            "`max_skew` is by how many pods a zone may lead: 1 or more, and not of a daemonset",
        );
    }
    Some(workload)
}

fn read_kind(reader: &mut ScenarioDecoder<'_>, block: &Block) -> Option<WorkloadKind> {
    let run_for = reader.read_duration(&block.body, "run_for");
    let kind = reader.read_text(&block.body, "kind").unwrap_or_else(|| "deployment".to_owned());
    match (kind.as_str(), run_for) {
        ("deployment", None) => Some(WorkloadKind::Deployment),
        ("statefulset", None) => Some(WorkloadKind::StatefulSet),
        ("daemonset", None) => Some(WorkloadKind::DaemonSet),
        ("job", Some(run_for)) => Some(WorkloadKind::Job { run_for }),
        ("job", None) => {
            reader.add_mistake_in(block, "a job must have `run_for`, such as \"20m\"");
            None
        }
        ("deployment" | "statefulset" | "daemonset", Some(_)) => {
            reader.add_mistake_in(block, "only a job has `run_for`");
            None
        }
        _ => {
            let text = "`kind` is \"deployment\", \"statefulset\", \"job\" or \"daemonset\"";
            reader.add_mistake_in(block, text);
            None
        }
    }
}

fn read_steps(reader: &mut ScenarioDecoder<'_>, block: &Block, start: Timestamp) -> Vec<ScaleStep> {
    let mut steps = Vec::new();
    if let Some(replicas) = reader.read_number(&block.body, "replicas") {
        steps.push(ScaleStep { at: start, replicas });
    }
    for step in block.body.get_blocks("at") {
        reader.check_known_names(&step.body, &["replicas"], &[]);
        let Some(label) = reader.only_label(step, "a time of day such as \"08:30\"") else {
            continue;
        };
        let moment = time_of_day(label, start);
        let replicas = reader.read_number(&step.body, "replicas");
        match (moment, replicas) {
            (Some(at), Some(replicas)) => steps.push(ScaleStep { at, replicas }),
            (None, _) => {
                reader.add_mistake_in(
                    step,
                    &format!("{label:?} is not a time of day such as \"08:30\""),
                );
            }
            (_, None) if step.body.has_attribute("replicas") => {}
            (_, None) => reader.add_mistake_in(step, "`replicas` is missing"),
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// Parses the times at which the template of a Deployment changes.
fn read_rollouts(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    owns: WorkloadKind,
    start: Timestamp,
) -> Vec<Timestamp> {
    let mut rollouts = Vec::new();
    for rollout in block.body.get_blocks("rollout") {
        reader.check_known_names(&rollout.body, &[], &[]);
        let label = reader.only_label(rollout, "a time of day such as \"08:30\"");
        rollouts.extend(label.and_then(|label| time_of_day(label, start)));
        if owns != WorkloadKind::Deployment {
            reader.add_mistake_in(rollout, "only a deployment is rolled out");
        }
    }
    rollouts
}

fn read_budget(reader: &mut ScenarioDecoder<'_>, block: &Block) -> Option<SimPdb> {
    let body = &block.body;
    reader.check_known_names(body, &["min_available", "max_unavailable"], &[]);
    let min_available = reader.read_number_or_share(body, "min_available");
    let max_unavailable = reader.read_number_or_share(body, "max_unavailable");
    match (min_available, max_unavailable) {
        (Some((pods, false)), None) => Some(SimPdb::MinAvailable(pods)),
        (Some((percent, true)), None) => Some(SimPdb::MinAvailableShare(percent)),
        (None, Some((pods, false))) => Some(SimPdb::MaxUnavailable(pods)),
        (None, Some((percent, true))) => Some(SimPdb::MaxUnavailableShare(percent)),
        _ => {
            reader.add_mistake_in(block, "a pdb wants either `min_available` or `max_unavailable`");
            None
        }
    }
}

fn read_toleration(reader: &mut ScenarioDecoder<'_>, block: &Block) -> Option<Toleration> {
    let key = reader.only_label(block, "the taint's key, \"\" for all")?;
    reader.check_known_names(&block.body, &["value", "effect"], &[]);
    let value = reader.read_text(&block.body, "value");
    let effect = match reader.read_text(&block.body, "effect") {
        None => None,
        Some(text) => {
            let effect = Effect::parse(&text);
            if effect.is_none() {
                reader.add_mistake_in(block, &format!("`effect` is one of {:?}", Effect::NAMES));
            }
            Some(effect?)
        }
    };
    let operator = match value {
        Some(_) => TolerationOperator::Equal,
        None => TolerationOperator::Exists,
    };
    let value = value.unwrap_or_default();
    Some(Toleration { key: key.to_owned(), operator, value, effect })
}

fn read_require(reader: &mut ScenarioDecoder<'_>, block: &Block, wants: &mut Vec<Want>) {
    const OPERATORS: [(&str, Operator); 8] = [
        ("in", Operator::In),
        ("not_in", Operator::NotIn),
        ("exists", Operator::Exists),
        ("does_not_exist", Operator::DoesNotExist),
        ("gt", Operator::Gt),
        ("gte", Operator::Gte),
        ("lt", Operator::Lt),
        ("lte", Operator::Lte),
    ];
    let Some(key) = reader.only_label(block, "the label's key") else {
        return;
    };
    let names = OPERATORS.map(|(name, _)| name);
    reader.check_known_names(&block.body, &names, &[]);
    for attribute in block.body.attributes() {
        let name = attribute.key.as_str();
        let Some((_, operator)) = OPERATORS.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        let values = match operator {
            Operator::Exists | Operator::DoesNotExist => Some(Vec::new()),
            _ => reader.read_texts(attribute),
        };
        let Some(values) = values else { continue };
        if let Err(error) = Requirement::from_operator(*operator, &values) {
            reader.add_mistake_in(attribute, &error.to_string());
        }
        wants.push(Want { key: key.to_owned(), operator: *operator, values });
    }
}

/// Parses a shortage.
pub fn read_capacity(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    start: Timestamp,
) -> Option<Shortage> {
    let body = &block.body;
    reader.check_known_names(
        body,
        &["type", "zone", "capacity_type", "left", "from", "until"],
        &[],
    );
    let from = reader.read_time_of_day(body, "from", start).unwrap_or(start);
    let until = reader.read_time_of_day(body, "until", from);
    Some(Shortage {
        instance_type: reader.read_text(body, "type"),
        zone: reader.read_text(body, "zone"),
        capacity_type: read_capacity_type(reader, block, body)?,
        left: reader.read_number(body, "left").unwrap_or(0),
        from,
        until,
    })
}

/// Parses the capacity type, if given. `None` if it is invalid.
fn read_capacity_type(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    body: &Body,
) -> Option<Option<CapacityType>> {
    let Some(text) = reader.read_text(body, "capacity_type") else {
        return Some(None);
    };
    let parsed = CapacityType::parse(&text);
    if parsed.is_none() {
        let text = format!("`capacity_type` is one of {:?}", CapacityType::NAMES);
        reader.add_mistake_in(block, &text);
    }
    parsed.map(Some)
}

/// Parses an interruption of spot instances.
pub fn read_interruption(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    start: Timestamp,
) -> Option<SpotReclaim> {
    reader.check_known_names(&block.body, &["at", "count", "within"], &[]);
    let at = reader.read_time_of_day(&block.body, "at", start);
    if at.is_none() && !block.body.has_attribute("at") {
        reader.add_mistake_in(block, "`at` is missing: when, such as \"13:00\"");
    }
    let count = match reader.read_number_or_share(&block.body, "count") {
        Some((share, true)) => ReclaimCount::Share(share),
        Some((count, false)) => ReclaimCount::Count(count),
        None => ReclaimCount::Count(1),
    };
    Some(SpotReclaim {
        at: at?,
        count,
        within: reader.read_duration(&block.body, "within").unwrap_or_default(),
    })
}

/// Parses a zone outage.
pub fn read_outage(
    reader: &mut ScenarioDecoder<'_>,
    block: &Block,
    start: Timestamp,
) -> Option<Outage> {
    let zone = reader.only_label(block, "the zone")?;
    reader.check_known_names(&block.body, &["from", "until"], &[]);
    let from = reader.read_time_of_day(&block.body, "from", start);
    if from.is_none() && !block.body.has_attribute("from") {
        reader.add_mistake_in(block, "`from` is missing: when, such as \"13:00\"");
    }
    let from = from?;
    Some(Outage {
        zone: zone.to_owned(),
        from,
        until: reader.read_time_of_day(&block.body, "until", from),
    })
}
